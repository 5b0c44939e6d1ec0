"""A regression trained by Lightning, with this library between the ranks.

    collectives run --no-mpi -n 2 examples/torch_lightning.py

It needs torch and lightning (``pip install torch lightning``). DDPStrategy takes the name of the
backend.
"""

import argparse
import logging
import os

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

import collectives.torch  # noqa: F401 - it registers the backend

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--backend", default="collectives", help="or gloo, to compare")
parser.add_argument("--epochs", type=int, default=3)
arguments = parser.parse_args()
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Regression(lightning.LightningModule):
    """A linear model, whose mean loss over all ranks is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        """Print the loss of an epoch."""
        loss = self.trainer.callback_metrics["loss"]
        self.print(f"epoch {self.current_epoch}: loss {float(loss):.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(1, verbose=False)
x = torch.randn(96, 8)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
here = int(os.environ["LOCAL_WORLD_SIZE"])  # Lightning does not count the ranks itself
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=here,
    num_nodes=int(os.environ["WORLD_SIZE"]) // here,
    strategy=DDPStrategy(process_group_backend=arguments.backend),
    max_epochs=arguments.epochs,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=12))
trainer.print(f"{trainer.world_size} ranks, {torch.distributed.get_backend()}")
