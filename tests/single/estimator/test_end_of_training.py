"""The note of the end of a training knows the step of each kind of checkpoint."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.errors import ModelDirError
from tfdist.estimator.package import coordinator
from tfdist.estimator.training import model_dir


def save_objects(folder: str, name: str) -> None:
    path = tf.train.Checkpoint(step=tf.Variable(7)).write(f"{folder}/{name}")
    tf.compat.v1.train.update_checkpoint_state(folder, path)


def test_an_object_based_checkpoint(tmp_path):
    save_objects(str(tmp_path), "model.ckpt-7")
    model_dir.note_end_of_training(str(tmp_path))
    assert model_dir.end_of_training(str(tmp_path)).global_step == 7


def test_a_checkpoint_without_a_step(tmp_path):
    save_objects(str(tmp_path), "model")
    with pytest.raises(ModelDirError, match="expected a checkpoint with the variable"):
        model_dir.note_end_of_training(str(tmp_path))


def test_the_last_loss_takes_the_place_of_the_estimator():
    class Estimator:
        def _train_model_distributed(self, input_fn, hooks, saving_listeners):
            self.tfdist_last_loss = 0.5
            return self if input_fn else 0.25

    coordinator.log_the_last_loss(Estimator)
    assert Estimator()._train_model_distributed(True, [], []) == 0.5
    assert Estimator()._train_model_distributed(False, [], []) == 0.25
