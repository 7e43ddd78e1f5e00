"""tfdist's distribution strategies, one per file."""

from tfdist.strategies.central_storage_strategy import CentralStorageStrategy
from tfdist.strategies.communication_options import CommunicationOptions
from tfdist.strategies.local_update_strategy import LocalUpdateStrategy
from tfdist.strategies.mirrored_strategy import MirroredStrategy
from tfdist.strategies.multi_worker_mirrored_strategy import MultiWorkerMirroredStrategy
from tfdist.strategies.one_device_strategy import OneDeviceStrategy
from tfdist.strategies.parameter_server_strategy import ParameterServerStrategy
from tfdist.strategies.tpu_strategy import TPUStrategy

# The strategy's older name in TensorFlow.
CollectiveAllReduceStrategy = MultiWorkerMirroredStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveAllReduceStrategy",
    "CommunicationOptions",
    "LocalUpdateStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
]
