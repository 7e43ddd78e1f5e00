"""Every repair of Keras lives here: what is wrong upstream, and what we put in its place.

Repairs are applied when one of our strategies is made (that of `compilation` by `tfdist.init()`),
never by an import, and each only once. Each has a test that fails once Keras no longer needs it
(tests/parallel/test_keras_repairs.py for several workers, tests/devices/test_repairs.py for several
devices).
"""

from __future__ import annotations

import functools
import logging

_log = logging.getLogger("tfdist")

# The Keras releases that the repairs were written and tested for, both ends included.
_FIRST, _LAST = (3, 8), (3, 15)


@functools.cache
def apply_repairs() -> None:
    """Repairs the installed Keras 3 where our strategies need it; later calls do nothing."""
    import keras

    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version[0] < 3 or keras.backend.backend() != "tensorflow":
        return
    if not _FIRST <= version <= _LAST:
        _log.warning(
            "tfdist's repairs of Keras were written for %d.%d to %d.%d; Keras %s is left as it is",
            *_FIRST,
            *_LAST,
            keras.__version__,
        )
        if version < _FIRST:
            from tfdist.keras import refusal

            refusal.refuse_to_compile(".".join(map(str, _FIRST)))
        return
    # Not above: these import Keras, and a bare import of tfdist must not.
    from tfdist.keras import (
        callbacks,
        layers,
        legacy_tables,
        legacy_training,
        optimizers,
        server_optimizers,
        servers,
        table_gradients,
        training,
        variables,
    )

    if version == (3, 8):
        training.take_datasets_from_functions()
    training.build_from_local_batch()
    training.warn_of_different_orders()
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
    legacy_tables.send_rows_to_servers()
    legacy_training.count_own_batches()
    servers.tell_paths()
    servers.accumulate_own_steps()
    servers.wait_for_final_averages()
    servers.share_training_data_only()
    callbacks.checkpoint_on_chief()
    callbacks.back_up_on_chief()
