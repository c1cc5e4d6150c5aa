"""Conversion between trainrig's tensors ("ours") and a family's ("theirs"), one at a time."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.encoder import build_model
from trainrig.models.families import mapping
from trainrig.models.families.mxfp4 import ReadableTensor

Size = tuple[int, ...]
HEAD = ("head.weight",)


def list_tensor_shapes(config: DecoderConfig) -> dict[str, Size]:
    """Return the shape of each tensor of a model by our names, without allocating any."""
    with torch.device("meta"):
        return {name: tuple(t.shape) for name, t in build_model(config).state_dict().items()}


def list_tensors(
    family: mapping.Family, config: DecoderConfig, shapes: Mapping[str, Size]
) -> list[mapping.TensorName]:
    """Return the tensors of one model of `family`, from the embedding to the head.

    Raises DataError if the family has no name for one of the model's tensors.
    """
    found = list[mapping.TensorName]()
    covered = set[str]()
    table = family.tensors
    if config.head != "tokens":
        own = family.list_head_tensors(config.head)
        taken = {HEAD, *(entry.ours for entry in own)}
        table = (*(entry for entry in table if entry.ours not in taken), *own)
    for entry in _expand_layers(table, config):
        if all(name in shapes for name in entry.ours) and (
            entry.applies is None or entry.applies(config)
        ):
            found.append(entry.resolve_order(config))
            covered.update(entry.ours)
    if missing := sorted(shapes.keys() - covered):
        raise DataError(
            f"{family.model_type}: a model of this family cannot hold the tensor {missing[0]}"
        )
    return found


def _expand_layers(
    table: tuple[mapping.TensorName, ...], config: DecoderConfig
) -> Iterator[mapping.TensorName]:
    of_layers = [entry for entry in table if mapping.LAYER in entry.theirs]
    first = table.index(of_layers[0])
    yield from table[:first]
    reading = config.encoding_layers if isinstance(config, EncoderDecoderConfig) else config.layers
    for layer in range(reading):
        yield from (_number_layer(entry, mapping.LAYER, layer, layer) for entry in of_layers)
    of_writing = [entry for entry in table if mapping.WRITING_LAYER in entry.theirs]
    for layer in range(config.layers if of_writing else 0):
        for entry in of_writing:
            yield _number_layer(entry, mapping.WRITING_LAYER, reading + layer, layer)
    plain = (entry for entry in table[first:] if entry not in of_layers and entry not in of_writing)
    yield from plain


def _number_layer(
    entry: mapping.TensorName, mark: str, ours: int, theirs: int
) -> mapping.TensorName:
    return replace(
        entry,
        ours=tuple(name.replace(mark, str(ours)) for name in entry.ours),
        theirs=entry.theirs.replace(mark, str(theirs)),
    )


def list_their_shapes(entry: mapping.TensorName, shapes: Mapping[str, Size]) -> dict[str, Size]:
    """Return the names and shapes of the tensors of theirs that `entry` maps."""
    sizes = [shapes[name] for name in entry.ours]
    if mapping.EXPERT in entry.theirs:
        (size,) = sizes
        one = size[:0:-1] if entry.transposed else size[1:]
        return {entry.theirs.replace(mapping.EXPERT, str(expert)): one for expert in range(size[0])}
    length = sum(size[entry.dim] for size in sizes)
    joined = (*sizes[0][: entry.dim], length, *sizes[0][entry.dim + 1 :])
    if entry.transposed:
        joined = (*joined[:-2], joined[-1], joined[-2])
    return {entry.theirs: joined}


def read_ours(
    entry: mapping.TensorName,
    part: int,
    shapes: Mapping[str, Size],
    stored: Mapping[str, ReadableTensor],
) -> Tensor:
    """Return tensor number `part` of ours of `entry`, read from the `stored` tensors."""
    if mapping.EXPERT in entry.theirs:
        experts = (stored[name] for name in list_their_shapes(entry, shapes))
        stack: Tensor | None = None
        for place, expert in enumerate(experts):
            tensor = expert.read()
            tensor = tensor.mT if entry.transposed else tensor
            if stack is None:
                stack = torch.empty(shapes[entry.ours[0]], dtype=tensor.dtype)
            stack[place] = tensor
        assert stack is not None
        return stack
    tensor = stored[entry.theirs].read()
    tensor = tensor.mT if entry.transposed else tensor
    if entry.order is not None:
        tensor = tensor.index_select(entry.dim, torch.tensor(entry.order).argsort())
    if len(entry.ours) == 1:
        return tensor.contiguous()
    lengths = [shapes[name][entry.dim] for name in entry.ours]
    return tensor.narrow(entry.dim, sum(lengths[:part]), lengths[part]).clone()


def read_theirs(
    entry: mapping.TensorName, name: str, shapes: Mapping[str, Size], read: Callable[[str], Tensor]
) -> Tensor:
    """Return their tensor `name` of `entry`, where `read` gives a tensor of ours by name."""
    if mapping.EXPERT in entry.theirs:
        expert = list(list_their_shapes(entry, shapes)).index(name)
        tensor = read(entry.ours[0])[expert]
    elif len(entry.ours) == 1:
        tensor = read(entry.ours[0])
    else:
        tensor = torch.cat([read(ours) for ours in entry.ours], dim=entry.dim)
    if entry.order is not None:
        order = torch.tensor(entry.order, device=tensor.device)
        tensor = tensor.index_select(entry.dim, order)
    return tensor.mT if entry.transposed else tensor


def add_prefix(
    stored: Mapping[str, ReadableTensor], family: mapping.Family, names: list[mapping.TensorName]
) -> dict[str, ReadableTensor]:
    """Return `stored` with the names that a whole model has.

    Files saved without a head lack the prefix. Files from before 2019 have TensorFlow's names for
    the parameters of norms.
    """
    stored = {_rename_norm(name): tensor for name, tensor in stored.items()}
    if any(name.startswith(family.prefix) for name in stored):
        return stored
    whole = {entry.theirs for entry in names}
    return {
        name if name in whole else family.prefix + name: tensor for name, tensor in stored.items()
    }


def _rename_norm(name: str) -> str:
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(f"LayerNorm{old}"):
            return name.removesuffix(old) + new
    return name


def check_names(
    folder: str,
    family: mapping.Family,
    names: list[mapping.TensorName],
    stored: Mapping[str, ReadableTensor],
    shapes: Mapping[str, Size],
) -> None:
    """Raise DataError unless the stored tensors have the names and shapes of the model's."""
    wanted = {
        name: size for entry in names for name, size in list_their_shapes(entry, shapes).items()
    }
    if missing := sorted(wanted.keys() - stored.keys()):
        raise DataError(
            f"{folder}: missing tensors: {len(missing)}, first {missing[0]!r}; present: "
            f"{len(stored)}; download or save the model again"
        )
    known = {*wanted, "lm_head.weight"}  # Some files repeat a tied head.
    unused = re.compile(family.surplus)
    left = (n for n in stored if n not in known and not mapping.DERIVED.fullmatch(n))
    if surplus := sorted(n for n in left if not unused.fullmatch(n)):
        raise DataError(
            f"{folder}: tensors that do not belong to a {family.model_type} model: "
            f"{len(surplus)}, first {surplus[0]!r}; merge adapters and undo quantisation before "
            "the import"
        )
    for name, size in wanted.items():
        if stored[name].shape != size:
            raise DataError(
                f"{stored[name].path}: {name} has the shape {list(stored[name].shape)}, but "
                f"config.json says {list(size)}; download or save the model again"
            )
