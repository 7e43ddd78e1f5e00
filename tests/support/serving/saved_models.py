"""Small SavedModels whose answers have a closed form, each written as a version of a model."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf


class Affine(tf.Module):
    """Computes 2 x + the version for each row of three numbers, and the sum of a row."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self._added = tf.Variable(float(version))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    def serve(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        y = 2.0 * x + self._added
        return {"y": y, "total": tf.reduce_sum(y, axis=1)}


def write_affine(folder: Path, version: int = 1) -> Path:
    """Writes FOLDER/VERSION at once, as a training job should; returns it."""
    model = Affine(version)
    target = folder / str(version)
    arriving = folder.parent / f".{folder.name}-{version}"
    tf.saved_model.save(model, str(arriving), signatures={"serving_default": model.serve})
    folder.mkdir(exist_ok=True)
    return arriving.rename(target)


class EveryType(tf.Module):
    """Returns its inputs, one of each type that a request can have, and a scalar."""

    TYPES = (
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool, tf.string),
        *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    )

    @classmethod
    def signature(cls, module: tf.Module) -> tf.types.experimental.ConcreteFunction:
        """The function with an input for each type."""
        specs = {t.name: tf.TensorSpec([None, 2], t, t.name) for t in cls.TYPES}

        @tf.function
        def serve(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = {f"{name}_out": tf.identity(value) for name, value in inputs.items()}
            outputs["raw_bytes"] = tf.identity(inputs["string"])
            return outputs

        return serve.get_concrete_function(**specs)


def write_every_type(folder: Path, version: int = 1) -> None:
    """Writes FOLDER/VERSION of `EveryType`."""
    model = EveryType()
    signature = EveryType.signature(model)
    tf.saved_model.save(model, str(folder / str(version)), signatures=signature)


def write_classifier(folder: Path, version: int = 1) -> None:
    """Writes a model of TensorFlow 1's format, as Estimators export them.

    It has signatures to classify and to regress, of examples with a feature x: the classes "low"
    and "high" have the scores 1 - x and x, and the value of an example is 10 x.
    """
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as session:
        examples = tf.compat.v1.placeholder(tf.string, [None], "examples")
        features = {"x": tf.io.FixedLenFeature([], tf.float32)}
        x = tf.io.parse_example(examples, features)["x"]
        scores = tf.stack([1.0 - x, x], axis=1)
        classes = tf.tile(tf.constant([["low", "high"]]), [tf.shape(x)[0], 1])
        build = tf.compat.v1.saved_model
        builder = build.Builder(str(folder / str(version)))
        builder.add_meta_graph_and_variables(
            session,
            [build.tag_constants.SERVING],
            {
                "serving_default": build.classification_signature_def(examples, classes, scores),
                "value": build.regression_signature_def(examples, 10.0 * x),
            },
        )
        builder.save()
