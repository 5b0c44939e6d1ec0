"""An accelerator that torch knows, written in Python, for tests that try to make the library fail.

::

    with Accelerator(mode="lazy") as device:
        x = torch.ones(3, device="fake")

The host cannot touch the storage of its tensors: the threads of its streams have the same memory at
other addresses. `fake_gpu` has the memory, the streams, and the checks of the order. An operation
without a kernel here is computed by torch's kernel for the CPU, later, on the stream that was
current. Shapes are known at once, from torch's kernels for the device "meta".

torch 2.13 asks a device that is written in Python for no streams and events. So `torch.Stream`,
`torch.Event`, `torch.accelerator.current_stream` and pinned memory are replaced while there is one.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map

from collectives.devices import accelerators

sys.path.append(str(Path(__file__).resolve().parents[2] / "devices"))

from fake_gpu import FakeDriver
from fake_memory import Allocation, Span
from fake_streams import NAME, Event, Module, Stream, _now, here, record, unknown

aten = torch.ops.aten
SET = aten.set_.source_Storage_storage_offset
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
SPARSE_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
# Operations that torch's kernels for the CPU do right with any memory, as they use shapes alone.
OF_SHAPES = (aten.as_strided.default, aten.view.default, aten._reshape_alias.default)


class Accelerator:
    """A device for torch, as long as its ``with`` statement lasts.

    Parameters
    ----------
    mode : str
        As for `FakeDriver`: when the streams run.
    pins : bool
        Whether host memory can be pinned for it.
    has_streams : bool
        Whether torch's calls for streams and events know it.
    records : bool
        Whether it has `record_stream`.
    memory : int
        Its bytes.
    """

    def __init__(
        self,
        mode: str = "random",
        *,
        pins: bool = True,
        has_streams: bool = True,
        records: bool = True,
        memory: int = 1 << 30,
    ) -> None:
        self.driver = FakeDriver(devices=1, mode=mode, memory=memory)
        self.pins, self.has_streams, self.records = pins, has_streams, records
        self.dropped: deque[tuple[Allocation, Stream]] = deque()
        self.copies: list[tuple[str, str, int, bool]] = []  # from, to, bytes, without waiting
        self._local = threading.local()
        self._closing = ExitStack()

    # -- memory --------------------------------------------------------------------------------

    def empty(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of the device, of which nothing is known."""
        length = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        nbytes = 0 if 0 in size else length * dtype.itemsize
        storage = self.storage(nbytes)
        made = torch._C._acc.create_empty_tensor([0], dtype)
        set_storage(made, storage, 0, size, stride)
        return made

    def storage(self, nbytes: int) -> torch.UntypedStorage:
        """Return memory of the device, which is given back when the returned object ends."""
        with self.driver.order.changed:
            self.free_dropped()
        address = self.driver.allocate(nbytes) if nbytes else 0
        place = torch.device(NAME, 0)
        storage = torch._C._construct_storage_from_data_pointer(address, place, nbytes)
        storage.held = self._held(address) if nbytes else None
        weakref.finalize(storage, self._drop, vars(storage)).atexit = False
        return storage

    def _held(self, address: int) -> tuple[Allocation, Stream]:
        found = self.driver.table.at(address)
        found.is_of_array = True
        found.users = {self.current}  # the streams that it is used on, its own first
        return found, self.current

    def _drop(self, attributes: dict[str, Any]) -> None:
        if attributes["held"] is not None:
            self.dropped.append(attributes["held"])

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
        """Exchange the memory of a storage for other memory; FSDP has no other use for it."""
        other = self.storage(nbytes)
        storage._swap_data_ptr_(other)
        storage.held, other.held = other.held, storage.held
        return storage

    def pinned(self, size: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor in host memory that copies without waiting read and write."""
        nbytes = torch.Size(size).numel() * dtype.itemsize
        if not nbytes:
            return torch.zeros(size, dtype=dtype)
        memory = self.driver.pinned(nbytes)
        found = self.driver.table.at(memory.address)
        found.is_of_array = True
        # It stays until the end: torch's allocator keeps it, too.
        return torch.frombuffer(memory.array, dtype=dtype).view(size)

    def free_dropped(self) -> None:
        """Give back the memory of tensors that are gone, after what their streams have to do.

        Torch's allocator does it when it needs memory for the same stream: FSDP relies on that.
        """
        dropped, self.dropped = self.dropped, deque()
        for found, own in dropped:
            if own != self.current:
                self.dropped.append((found, own))
                continue
            for stream in found.users - {own}:
                self.driver.order.enqueue(
                    own.stream, "the end of its use", after=[stream.stream.last]
                )
            self.driver.free_on(found.address, own.stream)

    def allocation(self, tensor: torch.Tensor) -> Allocation | None:
        """Return the memory of a tensor: on the device, pinned, or None if it is ordinary."""
        with self.driver.order.changed:
            return self.driver.table.find(tensor.untyped_storage().data_ptr())

    def hidden(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor of the CPU that the threads of the streams have instead of another."""
        if tensor.device.type == "cpu" and self.allocation(tensor) is None:
            return tensor
        storage = tensor.untyped_storage()
        made = torch.empty(0, dtype=tensor.dtype)
        if storage.nbytes():
            found = self.allocation(tensor)
            assert found is not None, "a tensor of an accelerator that is gone"
            address = found.hidden(storage.data_ptr())
            place = torch.device("cpu")
            nbytes = storage.nbytes()
            storage = torch._C._construct_storage_from_data_pointer(address, place, nbytes)
        else:
            storage = made.untyped_storage()
        set_storage(made, storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        return made

    def span(self, tensor: torch.Tensor) -> Span:
        """Return where the elements of a tensor are, as one piece."""
        last = sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
        return Span(tensor.data_ptr(), (last + 1) * tensor.element_size())

    # -- streams -------------------------------------------------------------------------------

    @property
    def current(self) -> Stream:
        """The current stream of this thread."""
        found: Stream | None = getattr(self._local, "stream", None)
        if found is None:
            found = self._local.stream = Stream(handle=0)
        return found

    def use(self, stream: Stream) -> None:
        """Make a stream the current one of this thread."""
        self._local.stream = stream

    def enqueue(
        self, what: str, run: Callable[[], None], reads: list[Any], writes: list[Any]
    ) -> Any:
        """Put work on the current stream."""
        driver = self.driver
        with driver.order.changed:
            driver._begin("launch")
            accesses = []
            for tensors, is_write in ((reads, False), (writes, True)):
                for each in tensors:
                    found = self.allocation(each) if each.numel() else None
                    if found is not None:
                        accesses.append((found, self.span(each), is_write))
            try:
                return driver.order.enqueue(
                    self.current.stream, what, driver._or_fail(run), accesses, watches=True
                )
            except Exception as error:
                driver.faults.append(error)
                raise

    def finish(self, op: Any) -> None:
        """Have the host wait for work."""
        with self.driver.order.changed:
            self.driver.order.finish(op)

    # -- copies --------------------------------------------------------------------------------

    def copy(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
        """Copy between the host and the device, or on the device."""
        if not source.numel():
            return
        ends = source, target
        names = tuple(each.device.type for each in ends)
        is_asynchronous = all(self.allocation(each) is not None for each in ends) and (
            non_blocking or "cpu" not in names
        )
        self.copies.append((*names, target.nbytes, is_asynchronous))
        of, to = (self.hidden(each) for each in ends)
        op = self.enqueue("a copy", lambda: to.copy_(of), [source], [target])
        if not is_asynchronous:
            self.finish(op)

    # -- torch ---------------------------------------------------------------------------------

    def __enter__(self) -> Accelerator:
        register()
        _now.append(self)
        replaced = [
            (torch, "empty", self._empty),
            (torch, "Stream", Stream if self.has_streams else unknown),
            (torch, "Event", Event if self.has_streams else unknown),
            (torch.Tensor, "record_stream", record if self.records else unknown),
            (torch.UntypedStorage, "clone", cloned),
            (torch.UntypedStorage, "cpu", to_host),
            (torch.UntypedStorage, "to", to_place),
            (torch.UntypedStorage, "resize_", resized),
            (torch.accelerator, "current_stream", lambda device=None: self.current),
            (torch.accelerator, "set_stream", self.use),
            (torch.accelerator, "synchronize", lambda device=None: self.current.synchronize()),
        ]
        for each in replaced:
            self._closing.enter_context(mock.patch.object(*each))
        return self

    def _empty(self, *size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if not pin_memory:
            return _torch_empty(*size, **options)
        if not self.pins:
            raise RuntimeError("no memory can be pinned")
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return self.pinned(tuple(shape), options.get("dtype") or torch.get_default_dtype())

    def __exit__(self, kind: type | None, *rest: Any) -> None:
        self._closing.close()
        accelerators._lanes.clear()
        gc.collect()
        _now.pop()
        self.driver._streams.clear()  # torch has them in pools
        self.driver._events.clear()
        self.driver.__exit__(kind, *rest)


_torch_empty = torch.empty
_torch_clone = torch.UntypedStorage.clone
_torch_to = torch.UntypedStorage.to
_torch_resize = torch.UntypedStorage.resize_


def cloned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Stand for `torch.UntypedStorage.clone`, which ``copy.deepcopy`` calls."""
    if storage.device.type != NAME:
        return _torch_clone(storage)
    return elements(storage).clone().untyped_storage()


def to_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Stand for `torch.UntypedStorage.cpu`, which `torch.save` calls."""
    return elements(storage).cpu().untyped_storage() if storage.device.type == NAME else storage


def to_place(storage: torch.UntypedStorage, *, device: torch.device, **rest: Any) -> Any:
    """Stand for `torch.UntypedStorage.to`, which `torch.load` calls."""
    if torch.device(device).type != NAME:
        return _torch_to(storage, device=device, **rest)
    return _torch_empty(0, dtype=torch.uint8).set_(storage).to(NAME).untyped_storage()


def resized(storage: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
    """Stand for `torch.UntypedStorage.resize_`, by which FSDP takes and gives back memory."""
    is_here = storage.device.type == NAME
    return here().resize(storage, nbytes) if is_here else _torch_resize(storage, nbytes)


def elements(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return the bytes of a storage of the device as a tensor."""
    return whole(torch._C._acc.create_empty_tensor([0], torch.uint8), storage)


# -- kernels ---------------------------------------------------------------------------------------


def set_storage(tensor: torch.Tensor, storage: Any, offset: int, size: Any, stride: Any) -> None:
    """Have a tensor of any device lie in a storage."""
    SET.redispatch(CPU, tensor, storage, offset, size, stride)


def whole(tensor: torch.Tensor, storage: Any) -> torch.Tensor:
    """Have a tensor be all that is in a storage."""
    set_storage(tensor, storage, 0, [storage.nbytes() // tensor.element_size()], [1])
    return tensor


def is_ours(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def computed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run any operation of torch: changes of shapes at once, and computations on the stream."""
    kwargs = {k: torch.device("cpu") if k == "device" else v for k, v in kwargs.items()}
    schema = op._schema
    returns = [each.alias_info for each in schema.returns]
    written = written_by(schema, args, kwargs)
    given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
    device = here()
    if returns and all(each is not None and not each.is_write for each in returns):
        return viewed(op, args, kwargs, given)
    made: Any = None
    outs: list[torch.Tensor] = []
    names = [each.name for each in schema.arguments if each.is_out]
    if names:  # the kernel may use them for something else on its way: it gets others
        outs = written
        resize(op, args, kwargs, names)
    elif not written:
        made = made_for(op, args, kwargs)
        outs = [each for each in tree_flatten(made)[0] if isinstance(each, torch.Tensor)]
    hidden = tree_map(
        lambda each: device.hidden(each) if isinstance(each, torch.Tensor) else each,
        (args, blank(kwargs, names, "cpu")),
    )
    targets = [device.hidden(each) for each in outs]

    def run() -> None:
        with torch.no_grad():
            results = op(*hidden[0], **hidden[1])
            found = [e for e in tree_flatten(results)[0] if isinstance(e, torch.Tensor)]
            for target, each in zip(targets, found, strict=True) if targets else ():
                if each.numel():  # a batch norm returns no statistics in evaluation
                    target.copy_(each)

    device.enqueue(str(op), run, given, written or outs)
    if made is not None or not returns:
        return made
    return written[0] if len(returns) == 1 else tuple(written)


def written_by(schema: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors that an operation says to write."""
    found: list[Any] = []
    for k, each in enumerate(schema.arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            value = args[k] if k < len(args) else kwargs.get(each.name)
            found += value if isinstance(value, (list, tuple)) else [value]
    return [each for each in found if each is not None]


def blank(kwargs: Any, names: list[str], device: str) -> Any:
    """Return arguments with new tensors instead of those that are to be written."""
    made = {k: _torch_empty(0, dtype=kwargs[k].dtype, device=device) for k in names}
    return kwargs | made


def resize(op: Any, args: Any, kwargs: Any, names: list[str]) -> None:
    """Give the tensors that an operation is to write the shapes of its results."""
    meta = tree_map(shape_of, (args, blank(kwargs, names, "meta")))
    op(*meta[0], **meta[1])
    for out, each in ((kwargs[name], meta[1][name]) for name in names):
        if out.size() != each.size():
            other = here().empty(each.size(), each.stride(), out.dtype)
            set_storage(out, other.untyped_storage(), 0, each.size(), each.stride())


def viewed(op: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
    """Return views as the CPU makes them."""
    if op in OF_SHAPES:
        return op.redispatch(CPU, *args, **kwargs)
    base = next(each for each in given if is_ours(each))
    meta = tree_map(shape_of, (args, kwargs))
    found = op(*meta[0], **meta[1])

    def view(each: torch.Tensor) -> torch.Tensor:
        size, stride, offset = each.size(), each.stride(), each.storage_offset()
        made = torch._C._acc.create_empty_tensor([0], each.dtype)
        set_storage(made, base.untyped_storage(), offset, size, stride)
        return made

    return [view(each) for each in found] if isinstance(found, (list, tuple)) else view(found)


def shape_of(value: Any) -> Any:
    """Return a tensor of the same shape on the device "meta"."""
    if not isinstance(value, torch.Tensor):
        return value
    size, stride = value.size(), value.stride()
    if is_ours(value):
        length = value.untyped_storage().nbytes() // value.element_size()
        base = _torch_empty(length, dtype=value.dtype, device="meta")
        return base.as_strided(size, stride, value.storage_offset())
    return torch.empty_strided(size, stride, dtype=value.dtype, device="meta")


def made_for(op: Any, args: Any, kwargs: Any) -> Any:
    """Return new tensors of the device for the results of an operation."""
    meta = tree_map(shape_of, (args, {k: v for k, v in kwargs.items() if k != "device"}))
    options = dict(meta[1], device="meta") if "device" in kwargs else meta[1]
    device = here()
    try:
        found = op(*meta[0], **options)
    except NotImplementedError:  # it depends on the elements
        device.current.synchronize()
        hidden = tree_map(
            lambda each: device.hidden(each) if isinstance(each, torch.Tensor) else each,
            (args, kwargs),
        )
        found = op(*hidden[0], **hidden[1])

    def made(each: Any) -> Any:
        if not isinstance(each, torch.Tensor):
            return each
        return device.empty(each.size(), each.stride(), each.dtype)

    return tree_map(made, found)


def sparse(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Make or take apart a sparse tensor, for which torch does not touch the elements, or add one
    to a dense tensor, as optimizers do.
    """
    if op in (aten.add.out, aten.add_.Tensor) and args[0].layout == torch.strided:
        out, other = kwargs.get("out", args[0]), args[1]
        assert out is args[0]
        scaled = other._values() * kwargs.get("alpha", 1)
        return out.index_put_(tuple(other._indices()), scaled, accumulate=True)
    return op.redispatch(SPARSE_CPU, *args, **kwargs)


def convolved(*args: Any) -> Any:
    return computed(aten.convolution.default, *args)


def convolved_back(gradient: Any, x: Any, weight: Any, *args: Any) -> Any:
    sizes = [gradient.size(1)]  # of a bias
    return computed(aten.convolution_backward.default, gradient, x, weight, sizes, *args)


def moved(source: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
    """Return a copy with another dtype or on another device; for a copy to the host that does not
    wait, torch pins the memory.
    """
    waits = not options.get("non_blocking")
    like = shape_of(source).to(dtype or source.dtype, memory_format=options.get("memory_format"))
    size, stride = like.size(), like.stride()
    if device is None or device.type == NAME:
        made = here().empty(size, stride, like.dtype)
    elif waits or not here().pins:
        made = torch.empty_strided(size, stride, dtype=like.dtype, device=device)
    else:
        made = here().pinned(size, like.dtype).as_strided(size, stride)
    return made.copy_(source, non_blocking=not waits)


def scalar(tensor: torch.Tensor) -> Any:
    """Return the element of a tensor of one; the host waits for it."""
    found: list[Any] = []
    hidden = here().hidden(tensor)
    op = here().enqueue("item", lambda: found.append(hidden.item()), [tensor], [])
    here().finish(op)
    return found[0]


def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> torch.Tensor:
    return here().empty(size, stride, dtype or torch.get_default_dtype())


def empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any) -> Any:
    meta = _torch_empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    return here().empty(size, meta.stride(), dtype or torch.get_default_dtype())


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
    here().copy(source, target, non_blocking)
    return target


_libraries: list[torch.library.Library] = []


def register() -> None:
    """Tell torch of the device, once in a process, before its first backward pass."""
    if _libraries:
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, Module())
    others = torch.library.Library("_", "IMPL")
    others.fallback(computed, "PrivateUse1")
    others.fallback(sparse, "SparsePrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in (
        ("empty_strided", empty_strided),
        ("empty.memory_format", empty),
        ("_copy_from", copy_from),
        ("_local_scalar_dense", scalar),
        ("_to_copy", moved),
        ("convolution_overrideable", convolved),
        ("convolution_backward_overrideable", convolved_back),
        ("set_.source_Storage", whole),
        ("set_.source_Storage_storage_offset", lambda *args: SET.redispatch(CPU, *args)),
    ):
        library.impl(name, kernel, "PrivateUse1")
    _libraries.extend([others, library])
