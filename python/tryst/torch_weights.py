"""State dicts of torch in a set of weights: plain tensors and DTensors, sharded in any way at either end.

An owner, in each rank of the trainer (its rank in torch.distributed is its rank in the set):

    declare_state_dict(owner, model.state_dict(), dtype=torch.bfloat16)
    with owner.version(105) as version:
        publish_state_dict(version, model.state_dict())

A member, whose state dict may be sharded otherwise:

    fetch_state_dict(engine, model.state_dict(), "latest")  # Fills it in place.
    engine.follow(lambda number: items(spare), switch)      # Or stages beside what is served.

torch.distributed is not used here: each rank speaks for itself. What is not in a state dict is not fetched.
"""

import itertools
import sys

from tryst import errors
from tryst.weights import Layout

# Torch's types that Tryst does not know travel as numbers of the same size.
_CARRIERS = {"float8_e4m3fnuz": "uint8", "float8_e5m2fnuz": "uint8", "float8_e8m0fnu": "uint8", "complex32": "uint32"}


def boxes(shape, mesh, placements, at, order=None):
    """What the position `at` of a mesh owns of a tensor: pairs of a box of the tensor, and the box of the local tensor
    that has it. Only a strided shard makes more than one. `order` has the axes of the mesh, the first one cut first."""
    runs = [[(0, size)] if size else [] for size in shape]
    for axis in range(len(mesh)) if order is None else order:
        dim = getattr(placements[axis], "dim", -1)
        if dim < 0:
            continue
        split, joined = getattr(placements[axis], "split_factor", 1), []
        for group in range(split):
            for begin, end in _chunk(_chunk(runs[dim], split, group), mesh[axis], at[axis]):
                if joined and joined[-1][1] == begin:
                    begin = joined.pop()[0]
                joined.append((begin, end))
        runs[dim] = joined
    pairs = []
    for of in runs:
        ends = list(itertools.accumulate((end - begin for begin, end in of), initial=0))
        pairs.append([(slice(*run), slice(*local)) for run, local in zip(of, itertools.pairwise(ends))])
    return [(tuple(box for box, _ in one), tuple(part for _, part in one)) for one in itertools.product(*pairs)]


def _chunk(runs, parts, at):
    """One of the parts into which torch.chunk cuts what the runs cover."""
    size = -(-sum(end - begin for begin, end in runs) // parts)
    low, high, chunk = size * at, size * (at + 1), []
    for begin, end in runs:
        if low < end - begin and high > 0:
            chunk.append((begin + max(low, 0), min(begin + high, end)))
        low, high = low - (end - begin), high - (end - begin)
    return chunk


def _order(name, tensor):
    """In which order a DTensor's axes cut it: None is that of the mesh, the outer one first."""
    for axis, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise errors.InvalidArgument(f"tensor {name!r} is a sum whose parts lie along axis {axis} of its mesh: reduce it first, "
                                         "with redistribute()")
    entries = getattr(tensor._spec, "shard_order", None) or ()
    if all(list(entry.mesh_dims) == sorted(entry.mesh_dims) for entry in entries):
        return None
    return [axis for entry in entries for axis in entry.mesh_dims]


def _plain(tensor):
    carrier = _CARRIERS.get(str(tensor.dtype).removeprefix("torch."))
    return tensor.detach() if carrier is None else tensor.detach().view(getattr(sys.modules["torch"], carrier))


def _parts(name, tensor):
    """Pairs of a box and this rank's memory of it."""
    if not hasattr(tensor, "device_mesh"):
        return [(tuple(slice(0, size) for size in tensor.shape), _plain(tensor))] if tensor.numel() else []
    order, mesh = _order(name, tensor), tensor.device_mesh
    if mesh.get_coordinate() is None:
        return []
    local = _plain(tensor.to_local())
    return [(box, local[part])
            for box, part in boxes(tensor.shape, mesh.shape, tensor.placements, mesh.get_coordinate(), order)]


def _tensors(state_dict):
    torch = sys.modules.get("torch")
    for name, tensor in state_dict.items():
        if torch is None or not isinstance(tensor, torch.Tensor):
            raise errors.InvalidArgument(f"{name!r} of the state dict is no torch.Tensor but a {type(tensor).__name__}: leave it out")
        yield name, tensor


def layouts(state_dict, dtype=None, owners=None):
    """The Layouts of a state dict, equal at all ranks that have the same one. Floats are to be published as `dtype`, if
    it is given. Plain tensors belong to `owners`, by default to all."""
    made = []
    for name, tensor in _tensors(state_dict):
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        kind = str(kind).removeprefix("torch.")
        kind, shape = _CARRIERS.get(kind, kind), tuple(tensor.shape)
        if not hasattr(tensor, "device_mesh"):
            made.append(Layout(name, kind, shape, owners))
            continue
        mesh, order, placements = tensor.device_mesh.mesh, _order(name, tensor), tensor.placements
        ranks = mesh.flatten().tolist()
        if order is None and not any(hasattr(placement, "split_factor") for placement in placements):
            made.append(Layout(name, kind, shape, ranks, [getattr(one, "dim", -1) for one in placements], tuple(mesh.shape)))
            continue
        places = zip(ranks, itertools.product(*map(range, mesh.shape)))
        made.append(Layout(name, kind, shape, boxes=[
            (rank, box) for rank, at in places for box, _ in boxes(shape, mesh.shape, placements, at, order)]))
    return made


def declare_state_dict(owner, state_dict, dtype=None, owners=None):
    """Owner.declare() of its layouts(). Where ranks have other names, as in a pipeline, gather those and declare all."""
    owner.declare(layouts(state_dict, dtype, owners))


def publish_state_dict(version, state_dict):
    """Copies what this rank owns into a Version, whose end seals it; the state dict may change at once."""
    for name, tensor in _tensors(state_dict):
        for box, part in _parts(name, tensor) if version.owner.boxes(name) else ():
            version.publish(name, part.cpu().resolve_conj().resolve_neg(), box, cast=version.owner.layout(name).dtype)


def items(state_dict):
    """For fetch() and stage() of a Member: this rank's boxes of each tensor, to be filled in place. Of names
    that share their memory, as tied weights do, the first one is there."""
    made, seen = {}, set()
    for name, tensor in _tensors(state_dict):
        parts = _parts(name, tensor)
        memory = tuple((part.data_ptr(), part.shape, part.stride()) for _, part in parts)
        if not parts or memory not in seen:
            made[name] = parts
            seen.add(memory)
    return made


def fetch_state_dict(member, state_dict, wanted="latest", timeout=60.0):
    """Member.fetch() into all tensors of the state dict, of which a failure may leave some with other bytes."""
    wants = items(state_dict)
    moved = [(part, part.new_empty(part.shape, device="cpu")) for parts in wants.values() for _, part in parts if part.device.type != "cpu"]
    host = {id(part): copy for part, copy in moved}
    fetched = member.fetch(wanted, {name: [(box, host.get(id(part), part)) for box, part in parts]
                                    for name, parts in wants.items()}, timeout)
    for part, copy in moved:
        part.copy_(copy)
    return fetched


def box_of(tensor_slice):
    """The box of torchstore's TensorSlice, as `boxes` of a Layout and fetch() take it."""
    return tuple(slice(begin, begin + size) for begin, size in zip(tensor_slice.offsets, tensor_slice.local_shape))
