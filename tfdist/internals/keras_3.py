"""Keras 3's internals that tfdist uses, in one list; the places of use say why."""

import keras

from tfdist.errors import UnsupportedKerasError
from tfdist.internals.missing import told

with told("keras.src", f"Keras {keras.__version__}", UnsupportedKerasError):
    from keras.src.backend import Variable as Variable
    from keras.src.backend import compute_output_spec as compute_output_spec
    from keras.src.backend import name_scope as name_scope
    from keras.src.backend.common import global_state as global_state
    from keras.src.backend.common.name_scope import current_path as current_path
    from keras.src.backend.common.stateless_scope import StatelessScope as StatelessScope
    from keras.src.backend.common.stateless_scope import in_stateless_scope as in_stateless_scope
    from keras.src.backend.tensorflow import trainer as trainer
    from keras.src.backend.tensorflow.optimizer import TFOptimizer as TFOptimizer
    from keras.src.backend.tensorflow.optimizer import (
        filter_empty_gradients as filter_empty_gradients,
    )
    from keras.src.backend.tensorflow.trainer import TFEpochIterator as TFEpochIterator
    from keras.src.legacy.saving import legacy_h5_format as legacy_h5_format
    from keras.src.losses import loss as loss
    from keras.src.models.functional import Functional as Functional
    from keras.src.optimizers import base_optimizer as base_optimizer
    from keras.src.optimizers.base_optimizer import BaseOptimizer as BaseOptimizer
    from keras.src.trainers import data_adapters as data_adapters
    from keras.src.trainers.compile_utils import CompileLoss as CompileLoss
    from keras.src.trainers.data_adapters.array_data_adapter import (
        ArrayDataAdapter as ArrayDataAdapter,
    )
    from keras.src.trainers.data_adapters.data_adapter_utils import (
        unpack_x_y_sample_weight as unpack_x_y_sample_weight,
    )
    from keras.src.trainers.data_adapters.generator_data_adapter import (
        GeneratorDataAdapter as GeneratorDataAdapter,
    )
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDataset as PyDataset
    from keras.src.trainers.data_adapters.py_dataset_adapter import (
        PyDatasetAdapter as PyDatasetAdapter,
    )
    from keras.src.trainers.data_adapters.tf_dataset_adapter import (
        TFDatasetAdapter as TFDatasetAdapter,
    )
