"""Stand-ins for torch, vLLM, verl and LMCache: what the adapters use of them, with the names and signatures of interfaces.txt.

install() puts them where imports find them. With ADAPTERS=real it is torch, vLLM and verl's base.py themselves, with ADAPTERS=lmcache
LMCache's own modules of the interface, and with ADAPTERS=vllm those of vLLM, without what they load of torch and of native code.
"""
import abc
import contextlib
import dataclasses
import enum
import importlib.machinery
import os
import sys
import types

import numpy

REAL = os.environ.get("ADAPTERS") == "real"
LMCACHE = os.environ.get("ADAPTERS") == "lmcache"
VLLM = os.environ.get("ADAPTERS") == "vllm"
STAND_INS = set()  # Modules of vLLM that ADAPTERS=vllm does not ask: they need torch itself.


def _module(name, **names):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__dict__.update(names)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


# ---- torch ----

class DType:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"

    def __reduce__(self):
        return getattr, (sys.modules["torch"], self.name)


class Tensor(numpy.ndarray):
    """numpy's array under a name of torch's."""

    def detach(self):
        return self

    def cpu(self):
        return self

    def contiguous(self):
        return numpy.ascontiguousarray(self).view(Tensor)

    def is_contiguous(self):
        return self.flags.c_contiguous

    def stride(self):
        return tuple(step // self.itemsize for step in self.strides)

    def to(self, device):
        return self

    @property
    def device(self):
        return types.SimpleNamespace(type="cpu")

    def numel(self):
        return self.size

    def element_size(self):
        return self.itemsize


def _torch():
    torch = _module("torch", Tensor=Tensor, from_dlpack=lambda array: numpy.from_dlpack(array).view(Tensor),
                    full=lambda shape, value: numpy.full(shape, value, "f").view(Tensor),
                    no_grad=lambda: lambda function: function, Size=tuple, dtype=DType, device=type("device", (str,), {}))
    for name in ("float32", "bfloat16", "float16", "int64", "uint8"):
        setattr(torch, name, DType(name))
    _module("torch.nn", Module=type("Module", (), {}))
    _module("torch.accelerator", synchronize=lambda: None)


# ---- vLLM ----

@dataclasses.dataclass(frozen=True)
class Replicate:
    pass


@dataclasses.dataclass(frozen=True)
class Shard:
    dim: int


@dataclasses.dataclass(frozen=True)
class ParamMeta:
    name: str
    dtype: object
    shape: tuple
    owners: tuple | None = dataclasses.field(default=None, kw_only=True)
    mesh_shape: tuple | None = dataclasses.field(default=None, kw_only=True)
    placements: tuple | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        if self.owners is not None and self.mesh_shape is None:
            object.__setattr__(self, "mesh_shape", (len(self.owners),))
        if self.placements is not None and all(isinstance(one, Replicate) for one in self.placements):
            object.__setattr__(self, "placements", None)


class WeightSource(abc.ABC):
    def owned_names(self, rank):
        return [meta.name for meta in self.metadata if meta.owners is None or rank in meta.owners]

    def implements_iter_full(self):
        return type(self).iter_full is not WeightSource.iter_full

    def implements_iter_local(self):
        return type(self).iter_local is not WeightSource.iter_local

    def iter_full(self):
        raise NotImplementedError

    def iter_local(self):
        raise NotImplementedError


@dataclasses.dataclass
class WeightTransferInitInfo:
    pass


@dataclasses.dataclass
class WeightTransferUpdateInfo:
    pass


@dataclasses.dataclass
class TrainerInitInfo:
    rank: int = dataclasses.field(kw_only=True)

    @property
    def is_sender(self):
        return self.rank == 0


class WeightTransferEngine(abc.ABC):
    supports_draft_weight_update = True
    defers_processing = False

    def __init__(self, config, vllm_config, device, model):
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.model_config = vllm_config.model_config

    def drain_pending(self):
        pass

    def parse_init_info(self, init_dict):
        return self._parsed(self.init_info_cls, init_dict)

    def parse_update_info(self, update_dict):
        return self._parsed(self.update_info_cls, update_dict)

    @staticmethod
    def _parsed(kind, values):
        try:
            return kind(**values)
        except TypeError as error:
            raise ValueError(str(error)) from error

    def update_weights(self, update_info):
        self.receive_weights(self.parse_update_info(update_info))

    @abc.abstractmethod
    def init_transfer_engine(self, init_info): ...

    @abc.abstractmethod
    def start_weight_update(self): ...

    @abc.abstractmethod
    def receive_weights(self, update_info): ...

    @abc.abstractmethod
    def finish_weight_update(self): ...

    @abc.abstractmethod
    def shutdown(self): ...


class TrainerWeightTransferEngine(abc.ABC):
    def __init__(self, *, client, source=None, is_sender=True, rank=0):
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank

    @classmethod
    @abc.abstractmethod
    def trainer_init(cls, init_info, *, client, source=None): ...

    @abc.abstractmethod
    def send_weights(self): ...

    def shutdown(self):
        pass


class _Factory:
    @classmethod
    def register_engine(cls, name, module_path_or_cls, class_name=None):
        if name in cls._registry:
            raise ValueError(f"{name} is already registered")
        cls._registry[name] = lambda: getattr(__import__(module_path_or_cls, fromlist=[class_name]), class_name)


class WeightTransferEngineFactory(_Factory):
    _registry = {}

    @classmethod
    def create_engine(cls, config, vllm_config, device, model):
        return cls._registry[config.backend]()(config, vllm_config, device, model)


class WeightTransferTrainerFactory(_Factory):
    _registry = {}

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        return cls._registry[init_info.backend]().trainer_init(init_info=init_info, client=client, source=source)


def _initialize_layerwise_reload(model):
    model.reloading = True


def _finalize_layerwise_reload(*args, **kwargs):
    args[0].reloading = False


@contextlib.contextmanager
def _disable_mtp_completeness_check():
    yield


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata(abc.ABC):
    pass


class KVConnectorHandshakeMetadata(abc.ABC):
    pass


@dataclasses.dataclass
class KVConnectorTransferResults:
    finished_sending: set = dataclasses.field(default_factory=set)
    finished_recving: set = dataclasses.field(default_factory=set)
    failed_recving: set = dataclasses.field(default_factory=set)


class KVConnectorBase_V1(abc.ABC):
    def __init__(self, vllm_config, role, kv_cache_config):
        self._kv_transfer_config, self._kv_cache_config, self._role = vllm_config.kv_transfer_config, kv_cache_config, role
        self._connector_metadata = None

    def bind_connector_metadata(self, connector_metadata):
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self):
        self._connector_metadata = None

    def _get_connector_metadata(self):
        assert self._connector_metadata is not None
        return self._connector_metadata

    def register_kv_caches(self, kv_caches):
        pass

    def set_host_xfer_buffer_ops(self, copy_operation):
        pass

    @abc.abstractmethod
    def start_load_kv(self, forward_context, **kwargs): ...

    @abc.abstractmethod
    def wait_for_layer_load(self, layer_name): ...

    @abc.abstractmethod
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...

    @abc.abstractmethod
    def wait_for_save(self): ...

    def get_finished(self, finished_req_ids):
        return None, None

    def get_transfer_results(self, finished_req_ids):
        raise NotImplementedError

    def get_block_ids_with_load_errors(self):
        return set()

    def shutdown(self):
        pass

    def get_handshake_metadata(self):
        pass

    def set_xfer_handshake_metadata(self, metadata):
        pass

    @abc.abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens): ...

    @abc.abstractmethod
    def update_state_after_alloc(self, request, blocks, num_external_tokens): ...

    @abc.abstractmethod
    def build_connector_meta(self, scheduler_output): ...

    def request_finished(self, request, block_ids):
        return False, None


@dataclasses.dataclass
class KVTransferConfig:
    kv_connector: str | None = None
    engine_id: str | None = None
    kv_buffer_device: str = "cuda"
    kv_role: str | None = None
    kv_connector_extra_config: dict = dataclasses.field(default_factory=dict)
    kv_connector_module_path: str | None = None


class KVConnectorFactory:
    @classmethod
    def create_connector(cls, config, role, kv_cache_config):
        if not config.scheduler_config.disable_hybrid_kv_cache_manager:
            raise ValueError("it does not support HMA")
        of = config.kv_transfer_config
        return getattr(importlib.import_module(of.kv_connector_module_path), of.kv_connector)(config, role, kv_cache_config)


def _vllm():
    for name in ("vllm", "vllm.config", "vllm.distributed", "vllm.model_executor", "vllm.model_executor.model_loader"):
        _module(name)
    sys.modules["vllm.distributed"].get_tensor_model_parallel_rank = lambda: 0
    for name in ("kv_transfer", "kv_transfer.kv_connector", "kv_transfer.kv_connector.v1"):
        _module("vllm.distributed." + name)
    _module("vllm.distributed.kv_transfer.kv_connector.v1.base", KVConnectorBase_V1=KVConnectorBase_V1,
            KVConnectorHandshakeMetadata=KVConnectorHandshakeMetadata, KVConnectorMetadata=KVConnectorMetadata,
            KVConnectorRole=KVConnectorRole, KVConnectorTransferResults=KVConnectorTransferResults)
    _module("vllm.distributed.kv_transfer.kv_connector.factory", KVConnectorFactory=KVConnectorFactory)
    _module("vllm.config.kv_transfer", KVTransferConfig=KVTransferConfig)
    base = dict(ParamMeta=ParamMeta, Replicate=Replicate, Shard=Shard, WeightSource=WeightSource,
                TrainerInitInfo=TrainerInitInfo, WeightTransferInitInfo=WeightTransferInitInfo,
                WeightTransferUpdateInfo=WeightTransferUpdateInfo, WeightTransferEngine=WeightTransferEngine,
                TrainerWeightTransferEngine=TrainerWeightTransferEngine)
    _module("vllm.distributed.weight_transfer", WeightTransferEngineFactory=WeightTransferEngineFactory,
            WeightTransferTrainerFactory=WeightTransferTrainerFactory, **base)
    _module("vllm.distributed.weight_transfer.base", **base)
    _module("vllm.model_executor.model_loader.mtp_validation",
            disable_mtp_completeness_check=_disable_mtp_completeness_check)
    _module("vllm.model_executor.model_loader.reload", initialize_layerwise_reload=_initialize_layerwise_reload,
            finalize_layerwise_reload=_finalize_layerwise_reload)


def _around_vllm():
    """The package's interfaces and factories, without what needs torch itself: the __init__.py of their folders, and the modules of the engine."""
    found = importlib.machinery.PathFinder.find_spec("vllm")
    if found is None:
        raise ImportError("vllm is not installed")
    for name in ("vllm", "vllm.config", "vllm.distributed", "vllm.distributed.kv_transfer", "vllm.distributed.kv_transfer.kv_connector",
                 "vllm.distributed.kv_transfer.kv_connector.v1", "vllm.model_executor", "vllm.model_executor.model_loader", "vllm.utils"):
        _module(name).__path__ = [os.path.join(found.submodule_search_locations[0], *name.split(".")[1:])]
    for name, names in {
            "config.parallel": "ParallelConfig", "v1.attention": "", "v1.attention.backend": "AttentionMetadata", "v1.core": "",
            "v1.core.sched": "", "v1.core.sched.output": "SchedulerOutput", "v1.outputs": "KVConnectorOutput",
    }.items():
        importlib.import_module("vllm.v1")
        _module(f"vllm.{name}", **{one: type(one, (), {}) for one in names.split()})
        STAND_INS.add(f"vllm.{name}")
    _module("vllm.platforms", current_platform=types.SimpleNamespace(device_type="cpu"))
    _module("vllm.model_executor.model_loader.reload", initialize_layerwise_reload=_initialize_layerwise_reload,
            finalize_layerwise_reload=_finalize_layerwise_reload)
    sys.modules["vllm.distributed"].get_tensor_model_parallel_rank = lambda: 0
    STAND_INS.update(("vllm.distributed", "vllm.platforms", "vllm.model_executor.model_loader.reload"))
    for name in "KVConnectorRole", "KVConnectorBase_V1", "supports_hma", "SupportsHMA":
        base = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
        setattr(sys.modules["vllm.distributed.kv_transfer.kv_connector.v1"], name, getattr(base, name))


# ---- verl ----

class CheckpointEngineRegistry:
    _registry = {}

    def register(backend):
        def wrapper(cls):
            CheckpointEngineRegistry._registry[backend] = cls
            return cls
        return wrapper

    @classmethod
    def get(cls, backend):
        return cls._registry[backend]

    @classmethod
    def new(cls, backend, *args, **kwargs):
        return cls.get(backend)(*args, **kwargs)


class CheckpointEngine(abc.ABC):
    wire_format = "named_tensors"

    @abc.abstractmethod
    def prepare(self): ...

    @classmethod
    @abc.abstractmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata): ...

    @abc.abstractmethod
    def init_process_group(self, **kwargs): ...

    @abc.abstractmethod
    def finalize(self): ...

    @abc.abstractmethod
    async def send_weights(self, weights, global_steps=None): ...

    @abc.abstractmethod
    async def receive_weights(self, global_steps=None): ...


def _verl():
    _module("verl")
    _module("verl.checkpoint_engine", CheckpointEngine=CheckpointEngine, CheckpointEngineRegistry=CheckpointEngineRegistry)
    _module("verl.checkpoint_engine.base", CheckpointEngine=CheckpointEngine,
            CheckpointEngineRegistry=CheckpointEngineRegistry)


def _around_verl():
    """verl's own base.py alone: what else it imports, as hydra and its workers, is not needed for its engines."""
    found = importlib.machinery.PathFinder.find_spec("verl").submodule_search_locations[0]
    _module("verl").__path__ = [found]
    _module("verl.checkpoint_engine").__path__ = [f"{found}/checkpoint_engine"]

    def anything(*_, **__):
        return lambda function: function

    for name, names in {
            "single_controller": "", "single_controller.base": "Worker", "single_controller.base.decorator": "Dispatch register",
            "single_controller.ray": "RayClassWithInitArgs RayWorkerGroup", "utils": "",
            "utils.distributed": "initialize_global_process_group_ray", "utils.import_utils": "import_external_libs",
            "utils.ray_utils": "auto_await", "workers": "", "workers.config": "CheckpointEngineConfig HFModelConfig RolloutConfig",
            "workers.rollout": "BaseRollout RolloutReplica get_rollout_class", "workers.rollout.utils": "ensure_async_iterator",
    }.items():
        _module(f"verl.{name}", **{one: type(one, (), {"ONE_TO_ALL": 0, "DP_COMPUTE": 0}) if one[0].isupper() else anything
                                   for one in names.split()})
    sys.modules["verl.utils.ray_utils"].auto_await = lambda function: function


# ---- LMCache ----

@dataclasses.dataclass(frozen=True)
class L1MemoryDesc:
    ptr: int
    size: int
    align_bytes: int
    stable_registration_size: int | None = None


@dataclasses.dataclass(frozen=True)
class TransferChannelAddress:
    offset: int
    size: int


@dataclasses.dataclass
class TransferChannelReadResult:
    finished: bool
    succeeded_mask: list = dataclasses.field(default_factory=list)

    def is_finished(self):
        return self.finished


class TransferChannelServer(abc.ABC):
    @abc.abstractmethod
    def __init__(self, listen_url, advertise_url, l1_memory_desc):
        ...

    @abc.abstractmethod
    def close(self):
        ...


class TransferChannelClient(abc.ABC):
    @abc.abstractmethod
    def __init__(self, transfer_channel_server_url):
        ...

    @abc.abstractmethod
    def submit_read(self, local_addresses, remote_addresses):
        ...

    @abc.abstractmethod
    def query_read_status(self, task_id):
        ...

    @abc.abstractmethod
    def close(self):
        ...


class TransferChannelContext(abc.ABC):
    @abc.abstractmethod
    def get_transfer_channel_server(self):
        ...

    @abc.abstractmethod
    def get_transfer_channel_client(self, peer_advertise_url):
        ...

    @abc.abstractmethod
    def remove_transfer_channel_client(self, peer_advertise_url):
        ...

    @abc.abstractmethod
    def get_transfer_channel_address(self, lmcache_addresses):
        ...

    @abc.abstractmethod
    def get_num_connected_clients(self):
        ...

    @abc.abstractmethod
    def close(self):
        ...


_channels = {}


def register_transfer_channel_factory(transfer_channel_type, factory):
    if transfer_channel_type in _channels:
        raise ValueError(f"Transfer channel factory already registered: {transfer_channel_type!r}")
    _channels[transfer_channel_type] = factory


def create_transfer_channel_context(transfer_channel_type, l1_memory_desc, listen_url, advertise_url, **kwargs):
    return _channels[transfer_channel_type](l1_memory_desc=l1_memory_desc, listen_url=listen_url, advertise_url=advertise_url,
                                            **kwargs)


def _lmcache():
    for name in "lmcache", "lmcache.v1", "lmcache.v1.distributed":
        _module(name)
    _module("lmcache.v1.distributed.internal_api", L1MemoryDesc=L1MemoryDesc)
    channel = "lmcache.v1.distributed.transfer_channel"
    _module(channel)
    _module(channel + ".api", TransferChannelAddress=TransferChannelAddress, TransferChannelReadResult=TransferChannelReadResult)
    _module(channel + ".abstract", TransferChannelServer=TransferChannelServer, TransferChannelClient=TransferChannelClient,
            TransferChannelContext=TransferChannelContext)
    _module(channel + ".factory", register_transfer_channel_factory=register_transfer_channel_factory,
            create_transfer_channel_context=create_transfer_channel_context)


def _around_lmcache():
    """The package without its __init__.py, which looks for devices."""
    found = importlib.machinery.PathFinder.find_spec("lmcache")
    if found is None:
        raise ImportError("lmcache is not installed")
    for name in "lmcache", "lmcache.v1", "lmcache.v1.distributed":
        module = _module(name)
        module.__path__ = [os.path.join(found.submodule_search_locations[0], *name.split(".")[1:])]
    _module("lmcache.v1.memory_management", MemoryObj=object)
    channel = "lmcache.v1.distributed.transfer_channel"
    module = _module(channel)
    module.__path__ = [os.path.join(found.submodule_search_locations[0], "v1", "distributed", "transfer_channel")]


def install():
    if REAL:
        _around_verl()
    elif LMCACHE:
        _torch()
        _around_lmcache()
    elif VLLM:
        _torch()
        _around_vllm()
    else:
        _torch()
        _vllm()
        _verl()
        _lmcache()
