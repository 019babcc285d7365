#!/usr/bin/env python3
"""interfaces.py [--print]: what the adapters use and override of vLLM, verl, LMCache and Ray has the parameters that interfaces.txt
says, and ours take what their bases do. ADAPTERS=real, ADAPTERS=lmcache or ADAPTERS=vllm asks the packages, otherwise the stubs are
asked."""
import importlib
import inspect
import pathlib
import sys

import stubs

stubs.install()
LIST = pathlib.Path(__file__).with_name("interfaces.txt")
OURS = {"vllm.distributed.weight_transfer.base:WeightTransferEngine": "tryst.vllm_weights:WorkerEngine",
        "vllm.distributed.weight_transfer.base:TrainerWeightTransferEngine": "tryst.vllm_weights:TrainerEngine",
        "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1": "tryst.vllm_kv:TrystConnector",
        "verl.checkpoint_engine.base:CheckpointEngine": "tryst.verl_weights:TrystCheckpointEngine",
        "lmcache.v1.distributed.transfer_channel.abstract:TransferChannelServer": "tryst.lmcache:TrystServer",
        "lmcache.v1.distributed.transfer_channel.abstract:TransferChannelClient": "tryst.lmcache:TrystClient",
        "lmcache.v1.distributed.transfer_channel.abstract:TransferChannelContext": "tryst.lmcache:TrystContext",
        "ray.experimental.rdt.tensor_transport_manager:TensorTransportManager": "tryst.ray_transport:Transport"}


def find(name):
    module, _, path = name.partition(":")
    if module in stubs.STAND_INS:
        raise ImportError("some of it needs torch")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def parameters(function):
    """Their names in order, with * before those that are given by name alone, ? behind those with a default."""
    marks = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**", "KEYWORD_ONLY": "*,"}
    return " ".join(marks.get(one.kind.name, "") + one.name + ("" if one.default is one.empty else "?")
                    for one in inspect.signature(function).parameters.values())


def main():
    wrong, checked, skipped = [], 0, {}
    for line in LIST.read_text().splitlines():
        name, _, expected = line.partition(" ")
        try:
            found = parameters(find(name))
        except ImportError as error:
            if stubs.REAL and not name.startswith(("ray.", "lmcache.")):
                raise
            skipped[name.partition(":")[0]] = str(error)
            continue
        checked += 1
        if "--print" in sys.argv:
            print(name, found)
        elif found != expected:
            wrong.append(f"{name} has the parameters {found!r}, and interfaces.txt says {expected!r}")
    for base, ours in OURS.items():
        if base.partition(":")[0] in skipped:
            continue
        base, ours = find(base), find(ours)
        wrong += [f"{ours.__name__} does not implement {name}" for name in sorted(getattr(ours, "__abstractmethods__", ()))]
        for name, theirs in inspect.getmembers(base, callable):
            mine = getattr(ours, name)
            if name.startswith("_") or mine is theirs or not inspect.isroutine(theirs):
                continue
            given = [one for one in inspect.signature(theirs).parameters.values() if one.kind.name != "VAR_KEYWORD"]
            takes = inspect.signature(mine).parameters
            wrong += [f"{ours.__name__}.{name} does not take {one.name!r}" for one in given if one.name not in takes]
    for line in wrong:
        print(line)
    print(f"{checked} signatures {'of the packages' if stubs.REAL or stubs.LMCACHE or stubs.VLLM else 'of the stubs'}, {len(wrong)} wrong"
          + "".join(f"; not there: {one}" for one in sorted({f"{module.partition('.')[0]}: {why}" for module, why in skipped.items()})))
    sys.exit(bool(wrong or not checked))


if __name__ == "__main__":
    main()
