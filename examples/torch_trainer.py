"""A small language model trained by the Trainer of Hugging Face's transformers.

    collectives run --no-mpi -n 2 examples/torch_trainer.py

It needs torch, transformers and accelerate (``pip install torch transformers accelerate``). The
model is made here, and learns to count.
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import collectives.torch

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--backend", default="collectives", help="or gloo, to compare")
parser.add_argument("--steps", type=int, default=20)
arguments = parser.parse_args()

if arguments.backend == "collectives":
    collectives.torch.init_process_group()  # before the TrainingArguments, which look for a group
else:
    torch.distributed.init_process_group(arguments.backend)
size = torch.distributed.get_world_size()

torch.manual_seed(1)
config = GPT2Config(
    vocab_size=32, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
model = GPT2LMHeadModel(config)
rows = [(torch.arange(16) + start) % 32 for start in range(128)]
data = [{"input_ids": row, "labels": row} for row in rows]

with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            max_steps=arguments.steps,
            per_device_train_batch_size=16 // size,
            learning_rate=0.01,
            use_cpu=True,
            logging_steps=arguments.steps // 2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=data,
    )
    trainer.train()
if torch.distributed.get_rank() == 0:
    for each in trainer.state.log_history:
        if "loss" in each:
            print(f"step {each['step']}: loss {float(each['loss']):.3f}")
    print(f"{trainer.args.world_size} ranks, {torch.distributed.get_backend()}")
torch.distributed.destroy_process_group()
