"""One call of `fit`, `evaluate` or `predict`: where it stands, and its participants.

| File | Holds |
|---|---|
| `session.py` | calls of this thread; a `FitSession` has the only counters |
| `participant.py` | the protocol of participants, drawn in time |
| `order.py` | the list of participants, with a reason for each place |
| `calls.py` | the dispatch of calls, data, steps and results to the participants |
| `of_keras_3.py`, `of_tf_keras.py` | all replaced functions of `fit`; differences |
| `files_of_keras_3.py`, `files_of_tf_keras.py` | backups, checkpoints |
| `adapter.py` | the questions to a Keras that participants have |
| `elastic_calls.py` | which calls a process of an elastic job makes, and which it leaves out |
| `positions.py`, `positions_of_keras_3.py`, `positions_of_tf_keras.py` | where a `fit` stands |
| `data_tasks.py`, `server_data.py`, `epoch_lengths.py` | participants: data |
| `fit_estimate.py` | the trained share of a `fit`, and the time that is left |
| `epoch_metrics.py`, `progress.py`, `trainjob_progress.py` | participants: logs |
| `elastic.py`, `local_rounds.py`, `preemption.py` | participants: steps of all workers |

A participant does not ask which Keras it is in, and no other module replaces a function of `fit`.
"""
