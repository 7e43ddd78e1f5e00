"""Every repair of Keras lives here: what is wrong upstream, and what we put in its place.

Repairs are applied when one of our strategies is made (that of `compilation` by `tfdist.init()`),
never by an import, and each only once. Each has a test that fails once Keras no longer needs it
(test_keras_repairs.py for several workers, tests/devices/test_repairs.py for several
devices).
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys

from tfdist._version import MAX_KERAS, MIN_KERAS
from tfdist.config.settings import allows_untested_keras
from tfdist.errors import UnsupportedKerasError

_log = logging.getLogger("tfdist")


@functools.cache
def apply_repairs() -> None:
    """Repairs the installed Keras 3 where our strategies need it; later calls do nothing.

    Raises:
      UnsupportedKerasError: Keras is newer than the newest tested release, and
        `TFDIST_ALLOW_UNTESTED_KERAS` is not 1.
    """
    import keras

    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version[0] < 3 or keras.backend.backend() != "tensorflow":
        return
    tested = "{}.{} to {}.{}".format(*MIN_KERAS, *MAX_KERAS)
    if version < MIN_KERAS:
        from tfdist.keras import refusal

        _log.warning(
            "tfdist repairs Keras %s; Keras %s is left as it is", tested, keras.__version__
        )
        refusal.refuse_to_compile(".".join(map(str, MIN_KERAS)))
        return
    if version > MAX_KERAS:
        if not allows_untested_keras():
            raise UnsupportedKerasError(
                f"tfdist trains with Keras {tested}, but Keras {keras.__version__} is installed, "
                "whose internals tfdist was not tested with: results could be wrong without an "
                "error. Install a tested one with "
                f"`pip install 'keras<{MAX_KERAS[0]}.{MAX_KERAS[1] + 1}'`, or a tfdist release "
                "that supports yours. TFDIST_ALLOW_UNTESTED_KERAS=1 goes on all the same."
            )
        _log.warning(
            "TFDIST_ALLOW_UNTESTED_KERAS: tfdist was tested with Keras %s, not with %s; results "
            "may be wrong",
            tested,
            keras.__version__,
        )
    # Not above: these import Keras, and a bare import of tfdist must not.
    from tfdist.keras import (
        callbacks,
        clipping,
        epoch_metrics,
        layers,
        legacy_tables,
        legacy_training,
        optimizers,
        saving,
        server_optimizers,
        servers,
        shuffling,
        table_gradients,
        training,
        variables,
    )

    if version == (3, 8):
        training.take_datasets_from_functions()
    training.build_from_local_batch()
    shuffling.shuffle_alike()
    training.log_metrics_of_all_replicas()
    training.copy_what_python_yields()
    training.predict_on_batch_once()
    variables.tell_how_replicas_agree()
    layers.average_moving_statistics()
    layers.keep_statistics_of_no_rows()
    optimizers.agree_on_overflow()
    optimizers.branch_before_replicas()
    optimizers.accumulate_all_gradients()
    optimizers.refuse_variables_of_no_strategy()
    optimizers.tell_whose_gradients_are_reduced()
    server_optimizers.update_on_servers()
    table_gradients.send_rows_to_servers()
    clipping.clip_sums()
    legacy_tables.send_rows_to_servers()
    saving.export_rows()
    saving.refuse_whole_hdf5()
    legacy_training.count_own_batches()
    servers.tell_paths()
    servers.accumulate_own_steps()
    servers.wait_for_final_averages()
    servers.share_training_data_only()
    epoch_metrics.log_metrics_of_all_workers()
    callbacks.checkpoint_on_chief()
    callbacks.back_up_on_chief()
    _register_layers()


def _register_layers() -> None:
    """Makes tfdist's layers known to `load_model`, which needs a strategy to make them anyway."""
    importlib.import_module("tfdist.embedding.layer")
    importlib.import_module("tfdist.horovod.batch_normalization")
    if "tf_keras" in sys.modules:
        importlib.import_module("tfdist.layers.legacy")
