"""Batch prediction: the rows of a job's input go through a model into files, each exactly once.

The input is cut into tasks, and the rows of task N are in part N. Workers are independent: they
share the output folder, and nothing else.

    OUT/part-000123-of-004567.parquet    rows of task 123, in the order of the input
    OUT/_rejected/part-000123-of-....jsonl   its bad records
    OUT/_manifest.json, OUT/_SUCCESS     written when all parts are there
    OUT/_job/job.json                    the input, its tasks, the model: equal for all workers
    OUT/_job/workers/ID                  a worker; it touches its file while it lives
    OUT/_job/claims/000123               the worker that computes part 123
    OUT/_job/staged/...                  files in the making
    OUT/_job/records/000123.json         part 123 is committed

    worker:  claim --> read, map, predict --> stage files, sync --> link the record --> rename files
                                                                    ^ the commit

A record is linked under its final name, which fails if there is one: so each part has one owner
that counts, however many have computed it. The record names the staged files, so that any worker
can complete a part that a dead one has committed. A claim only
keeps two workers from doing the same work.

| File | Holds |
|---|---|
| `predict.py` | `tfdist.predict` |
| `worker.py` | one worker: takes parts until all are there |
| `part.py` | the rows of one part, and its bad records |
| `batches.py` | reads and maps records, in batches that are the same whoever reads them |
| `deaths.py` | which record may have killed the former owners of a part |
| `claims.py`, `workers.py` | owners of parts, and whether they live |
| `folder.py` | the files above, linked and synced |
| `commits.py` | staged files, and the record that commits them |
| `job_description.py` | the agreement of all workers on input and model |
| `input_files.py` | notices that an input file was changed |
| `rejections.py` | ends a job whose records are all bad |
| `manifest.py` | the end: `_manifest.json` and `_SUCCESS` |
| `models.py`, `fingerprints.py` | Keras models, SavedModels and functions; their identity |
| `formats.py`, `writers.py`, `parquet.py` | formats of parts |
| `merged_metrics.py` | metrics of all rows, from those of parts |
| `options.py`, `command.py` | a worker of `tfdist predict` |
| `progress.py`, `report.py` | what is done, for the log and for `tfdist tasks` |
"""
