"""TensorFlow's internals that tfdist uses, in one list; the places of use say why."""

import tensorflow as tf

from tfdist.errors import UnsupportedTensorFlowError
from tfdist.internals.missing import told

with told("tensorflow.python", f"TensorFlow {tf.__version__}", UnsupportedTensorFlowError):
    from tensorflow.python import distribute as distribute
    from tensorflow.python import tpu as tpu
    from tensorflow.python.autograph.core import ag_ctx as ag_ctx
    from tensorflow.python.autograph.core import config as config
    from tensorflow.python.checkpoint.tensor_callable import Callable as Callable
    from tensorflow.python.data.experimental.ops.data_service_ops import (
        _from_dataset_id as _from_dataset_id,
    )
    from tensorflow.python.data.ops import prefetch_op as prefetch_op
    from tensorflow.python.data.ops.multi_device_iterator_ops import (
        OwnedMultiDeviceIterator as OwnedMultiDeviceIterator,
    )
    from tensorflow.python.data.util import structure as structure
    from tensorflow.python.distribute import (
        collective_all_reduce_strategy as collective_all_reduce_strategy,
    )
    from tensorflow.python.distribute import collective_util as collective_util
    from tensorflow.python.distribute import cross_device_ops as cross_device_ops
    from tensorflow.python.distribute import cross_device_utils as cross_device_utils
    from tensorflow.python.distribute import device_util as device_util
    from tensorflow.python.distribute import distribute_lib as distribute_lib
    from tensorflow.python.distribute import distribute_utils as distribute_utils
    from tensorflow.python.distribute import input_lib as input_lib
    from tensorflow.python.distribute import input_ops as input_ops
    from tensorflow.python.distribute import input_util as input_util
    from tensorflow.python.distribute import mirrored_strategy as mirrored_strategy
    from tensorflow.python.distribute import multi_worker_util as multi_worker_util
    from tensorflow.python.distribute import one_device_strategy as one_device_strategy
    from tensorflow.python.distribute import parameter_server_strategy as parameter_server_strategy
    from tensorflow.python.distribute import ps_values as ps_values
    from tensorflow.python.distribute import values_util as values_util
    from tensorflow.python.distribute.collective_util import (
        CommunicationImplementation as CommunicationImplementation,
    )
    from tensorflow.python.distribute.cross_device_ops import get_devices_from as get_devices_from
    from tensorflow.python.distribute.cross_device_ops import simple_broadcast as simple_broadcast
    from tensorflow.python.distribute.cross_device_utils import CollectiveKeys as CollectiveKeys
    from tensorflow.python.distribute.distribute_lib import (
        enter_or_assert_strategy as enter_or_assert_strategy,
    )
    from tensorflow.python.distribute.distribute_utils import regroup as regroup
    from tensorflow.python.distribute.distribute_utils import select_replica as select_replica
    from tensorflow.python.distribute.input_lib import DistributedDataset as DistributedDataset
    from tensorflow.python.distribute.input_lib import (
        DistributedDatasetsFromFunction as DistributedDatasetsFromFunction,
    )
    from tensorflow.python.distribute.input_lib import DistributedIterator as DistributedIterator
    from tensorflow.python.distribute.input_lib import (
        DistributedIteratorSpec as DistributedIteratorSpec,
    )
    from tensorflow.python.distribute.input_lib import InputWorkers as InputWorkers
    from tensorflow.python.distribute.mirrored_strategy import MirroredExtended as MirroredExtended
    from tensorflow.python.distribute.numpy_dataset import SingleDevice as SingleDevice
    from tensorflow.python.distribute.one_device_strategy import (
        OneDeviceExtended as OneDeviceExtended,
    )
    from tensorflow.python.distribute.ps_values import AggregatingVariable as AggregatingVariable
    from tensorflow.python.distribute.reduce_util import ReduceOp as ReduceOp
    from tensorflow.python.distribute.values import DistributedValues as DistributedValues
    from tensorflow.python.distribute.values import DistributedVariable as DistributedVariable
    from tensorflow.python.distribute.values import Mirrored as Mirrored
    from tensorflow.python.distribute.values import PerReplica as PerReplica
    from tensorflow.python.distribute.values import PerReplicaSpec as PerReplicaSpec
    from tensorflow.python.distribute.values import SyncOnReadVariable as SyncOnReadVariable
    from tensorflow.python.eager import context as context
    from tensorflow.python.eager.context import eager_mode as eager_mode
    from tensorflow.python.framework import auto_control_deps as auto_control_deps
    from tensorflow.python.framework import auto_control_deps_utils as auto_control_deps_utils
    from tensorflow.python.framework import func_graph as func_graph
    from tensorflow.python.framework import op_def_registry as op_def_registry
    from tensorflow.python.framework.none_tensor import NoneTensorSpec as NoneTensorSpec
    from tensorflow.python.ops import handle_data_util as handle_data_util
    from tensorflow.python.ops import script_ops as script_ops
    from tensorflow.python.ops.control_flow_util import (
        GraphOrParentsInXlaContext as GraphOrParentsInXlaContext,
    )
    from tensorflow.python.ops.control_flow_v2_func_graphs import (
        ControlFlowFuncGraph as ControlFlowFuncGraph,
    )
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable as ResourceVariable
    from tensorflow.python.ops.resource_variable_ops import variable_accessed as variable_accessed
    from tensorflow.python.saved_model import save_context as save_context
    from tensorflow.python.trackable.base import CheckpointInitialValue as CheckpointInitialValue
    from tensorflow.python.training.monitored_session import SessionCreator as SessionCreator
    from tensorflow.python.training.monitored_session import _MonitoredSession as _MonitoredSession
    from tensorflow.python.training.session_manager import SessionManager as SessionManager
    from tensorflow.python.util import tf_export as tf_export
    from tensorflow.python.util.tf_decorator import make_decorator as make_decorator
