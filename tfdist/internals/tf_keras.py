"""tf_keras's internals that tfdist uses, in one list; the places of use say why."""

import tf_keras

from tfdist.errors import UnsupportedKerasError
from tfdist.internals.missing import told

with told("tf_keras.src", f"tf_keras {tf_keras.__version__}", UnsupportedKerasError):
    from tf_keras.src.callbacks import CallbackList as CallbackList
    from tf_keras.src.distribute import distributed_file_utils as distributed_file_utils
    from tf_keras.src.distribute.worker_training_state import (
        WorkerTrainingState as WorkerTrainingState,
    )
    from tf_keras.src.engine import data_adapter as data_adapter
    from tf_keras.src.engine import training as training
    from tf_keras.src.engine.data_adapter import DataHandler as DataHandler
    from tf_keras.src.engine.data_adapter import GeneratorDataAdapter as GeneratorDataAdapter
    from tf_keras.src.engine.data_adapter import KerasSequenceAdapter as KerasSequenceAdapter
    from tf_keras.src.engine.data_adapter import TensorLikeDataAdapter as TensorLikeDataAdapter
    from tf_keras.src.layers.normalization.batch_normalization import (
        BatchNormalizationBase as BatchNormalizationBase,
    )
    from tf_keras.src.optimizers.optimizer import Optimizer as Optimizer
    from tf_keras.src.optimizers.utils import all_reduce_sum_gradients as all_reduce_sum_gradients
    from tf_keras.src.saving.legacy import hdf5_format as hdf5_format
    from tf_keras.src.utils import losses_utils as losses_utils
