"""Cases that only `scripts/test --all` runs: long cases, and most rounds of long tests."""

from __future__ import annotations

import os
import re
from typing import TypeVar

Case = TypeVar("Case")

# Set by `scripts/test --all` and `scripts/test --soak`.
LONG = os.environ.get("TEST_LONG") == "1"


def rounds(usual: int, long: int) -> int:
    """Returns the repetitions of a test: `usual`, or `long` in a long run."""
    return long if LONG else usual


def chosen(cases: dict[str, Case], *usual: str) -> dict[str, Case]:
    """Returns the cases of a test that goes through them: the named ones, or all in a long run."""
    return cases if LONG else {name: cases[name] for name in usual}


# By file name, a regular expression of the excluded cases; comments name the cases that cover them.
LONG_CASES = {
    # One member of two in the default tier, and a script with calls in another order.
    "test_elastic_script_faults.py": r"all_members_are_killed|two_newcomers|\[own[12]-",
    # Calls and parts in test_elastic_records.py; signed requests take the same way.
    "test_hostile_readers.py": r"asks_for_a_call\w+\[4\]|\[open\]|test_nobody_keeps",
    # Both Kerases share the code: of tf_keras a newcomer, a save, and a callback of one's own.
    "test_elastic_files.py": r"\[(saved of epoch 1|save of epoch 2|epoch end 2|batch end 1 3"
    r"|own end)-tf_keras\]",
    # The same cases with Adam, which has slots; of heads the mirrored case; of canned
    # estimators those in test_estimator_parity.py.
    "test_estimator_strategies.py": r"equals_no_strategy\[(\w+-sgd-|canned-"
    r"|head-adam-(one|central)|own-adam-one)|test_(a_keras_model|warm_start)\[(one|central)\]",
    # Two devices for each optimizer and four for Adam; three when evaluating; tf_keras with Adam.
    # Both strategies split and read input with the same code: of the others the mirrored cases.
    "test_parity.py": r"test_fit\[\w+-(\w+-3|(sgd|momentum)-4)\]"
    r"|test_fit\[central-((sgd|momentum)-2|adam-4)\]|test_fit\[mirrored-momentum-2\]"
    r"|test_last_batch\[central-"
    r"|test_evaluate_and_predict\[(\w+-[24]|central-3)\]|test_tf_keras\[(\w+-(sgd|momentum)|central)"
    r"|test_custom_loop\[\w+-(sgd|momentum)\]|test_last_batch\[mirrored-uneven\]"
    r"|test_batch_norm\w+\[central-",
    # Both strategies weigh rows with the same code, and so do workers: each loss in
    # test_uneven_workers.py. Of ways the ones that count steps otherwise; tf_keras with a mask.
    "test_uneven_batches.py": r"test_(train_on_batch|even\w+)\[central|logged_once\[central"
    r"|test_loss\[(?!mirrored-(mask|two outputs|a train_step)\])"
    r"|test_way\[(eagerly|mask, eagerly|scaled)\]|test_tf_keras\[rows\]",
    # Both strategies count with the same code; tf_keras in its loop of steps.
    "test_step_counter.py": r"test_(fit|custom_loop)\[central-"
    r"|test_fit\[mirrored-(graph|eager)-tf_keras",
    # One device acts as no strategy; both strategies of several devices reduce with the same code.
    "test_models_on_devices.py": r"\[(OneDevice|CentralStorage)Strategy-"
    r"(?!GAN|synchronized)|\[MirroredStrategy-(GRU|VAE|WGAN-GP|two views)\]",
    # Both strategies read with the same code; the mirrored cases cover it.
    "test_inputs.py": r"test_\w+\[central",
    # Batches of arrays and shuffled datasets in test_resume_on_devices.py, and the other datasets
    # that are opened once, or again; one strategy of devices. Adam with seeds. A plain dataset in
    # test_state and test_places; several steps at once in test_preemption.py; backups in
    # test_keras_callbacks.py, and ModelCheckpoint's files in test_checkpoint.py.
    "test_resume.py": r"test_inputs\[2-ranks-(batches_of_arrays|dataset_longer_than_an_epoch|arrays"
    r"|dataset_shuffled_twice|endless_dataset|dataset|py_dataset)\]"
    r"|test_places\[2-ranks-(after_an_epoch|two_steps_at_once)\]"
    r"|weights\[2-ranks-adam-\]|test_files_of_model_checkpoint",
    # A random search; Hyperband reads checkpoints while it searches.
    "test_tuner.py": r"one_process\[Hyperband\]",
    # Losses between two writes of rank 0, and in one.
    "test_elastic_tuner.py": r"\[worker \d in a step\]",
    # The same number of workers, and another one.
    "test_resume_after_kills.py": r"never_killed\[more_workers\]",
    "test_resume_on_devices.py": r"\[central-|of_unknown_size\]",
    # Both strategies open and log with the same code, and variables know no strategy.
    "test_repairs.py": r"test_(arrays_\w+|logs_of_a_batch\w+|replicas_cannot_meet\w+"
    r"|an_optimizer_built_outside\w+|predict_on_batch\w+|a_replica_without_rows\w+)\[central",
    # Two ranks; sample weights, which class weights become.
    "test_keras_inputs.py": r"test_predict\w+\[3-ranks\]|test_arrays\[2-ranks-class_weight\]",
    # In Keras 3, and tf_keras's own layer.
    "test_keras_batch_norm.py": r"test_tf_keras\[2-ranks-BatchNormalization\]",
    # SGD and Adam; a worker without rows. Rows of Adam.
    "test_keras_parity.py": r"predict\[2-ranks-momentum\]|test_last_batch\[2-ranks-uneven\]",
    "test_keras_optimizers.py": r"test_embedding\[2-ranks-(adagrad|sgd)\]",
    # Two ranks.
    "test_collective_gradients.py": r"of_every_collective\[3-ranks\]",
    # Two ranks; with Keras 3, and tf_keras's own state of compression.
    "test_compression.py": r"test_16_bits\[3-ranks\]",
    "test_compressed_training.py": r"test_tf_keras_learns",
    # Top-k has feedback too, and its recurrence; of each method the bytes.
    "test_compressed_local_updates.py": r"in_the_end\[2-ranks-powersgd\]|test_bytes_of_each",
    # The loop saves and restores the same; DiLoCo and top-k have an outer optimizer and feedback.
    # Of open rounds a rule with momentum, slots that are reset, fragments, several steps at once.
    "test_resumed_local_updates.py": r"test_custom\w+\[2-ranks-DiLoCo"
    r"|test_a_round\w+\[1-rank-(?!slots anew|averaging-7)"
    r"|test_a_round\w+\[2-ranks-(?!DiLoCo with top-k)"
    r"|test_fit\w+\[2-ranks-(DiLoCo with PowerSGD|EASGD|ADMM|streaming)\]",
    # Of tf_keras the rule with a multiplier for each variable; of Keras the others.
    "test_saved_local_updates.py": r"rounds\[2-ranks-(ADMM-keras|(?!ADMM)[\w -]+-tf_keras)\]",
    # Step by step, and with all delays; one fragment follows the same recurrence.
    "test_streaming_diloco.py": r"recurrence\[2-ranks-11\]|test_one_fragment",
    # test_statistics_and_slots has a loss with BatchNormalization and slots; a worker that leaves
    # within an epoch. Backups in test_resumed_local_updates.py, and test_elastic_resume.py.
    "test_elastic_local_updates.py": r"test_other_models|\[at its end\]|from_its_backup",
    # A kill in stage 1; short calls of fit in test_elastic_scripts.py.
    "test_whole_scripts.py": r"\[(?!two_stage-kill\])",
    # Both Kerases share the code: of tf_keras a callback with a state of its own.
    "test_elastic_callbacks.py": r"equal\[tf_keras-(?!own_state)|evaluates-1\]",
    # Of orders within an epoch those that several datasets draw from; all of them between epochs.
    "test_resume_draws.py": r"inputs\[1-rank-(?!branches-|interleaved|split)\w+-within",
    # Both strategies share the code.
    "test_no_sample_weights.py": r"\[central-",
    "test_replicas_without_rows.py": r"two_inputs\[central|predict\[central-\w+-eager",
    # A directory that the workers share.
    "test_keras_callbacks.py": r"test_backup_and_restore\[2-ranks-own_directories\]",
    # With a number of epochs.
    "test_tasks_async.py": r"comes_back_to_what_is_left\[endless\]",
    # One strategy with both ways of resuming.
    # Of files the weights, and checkpoints.
    "test_checkpoint.py": r"test_callbacks_check_point\w+\[central\]|equally\w+\[model_file\]",
    # Both strategies reduce with the same code; "both" options at once with either; gradients are
    # clipped by a global norm, and accumulated.
    "test_optimizers.py": r"test_every_step\[central-|test_clipping\[central-"
    r"|test_branching_optimizer\w+\[central-|test_(loss_scale\w+|clipping\w+)\[central\]"
    r"|test_embedding\[(central|mirrored-sgd)|test_accumulators\w+\[central\]"
    r"|test_clipping\[mirrored-(clipvalue|clipnorm)\]|test_every_step\[mirrored-(both|loss_scale)\]"
    r"|test_branching\w+\[mirrored-options1\]",
    # test_estimator_jobs.py starts such jobs, test_estimator_faults.py an evaluator; parameter
    # servers are in test_estimator_docs.py, resuming is in test_estimator_resume.py.
    "test_estimator_examples.py": r"test_adult_(alone\[|with_parameter_servers|by_workers)"
    r"|test_movielens|test_mnist_(alone|by_workers)",
    # All-reduce; parameter servers in test_estimator_parity.py.
    "test_estimator_jobs.py": r"test_(no_strategy|async|sync)$",
    # What the steps compute in test_estimator_strategies.py.
    "test_estimator_to_the_end.py": r"\[(?!mirrored-objects\])",
    # With servers a restart reads the step of a checkpoint; of all-reduce the note of the end.
    "test_estimator_object_checkpoints.py": r"test_in_step\[(?!sync-keras\])|async|no_strategy",
    # Programs of the page: test_estimator_jobs.py starts such a job, test_estimator_model_fns.py
    # reads an Estimator's checkpoint.
    "test_estimator_docs.py": r"test_estimator_and_then_keras",
    # Listeners and saver hooks in sync; two Estimators in turns async, and beginning with a
    # checkpoint with all-reduce.
    "test_estimator_checkpoints.py": r"test_(a_saver_hook\w+_with_all_reduce"
    r"|checkpoints_by_the_clock|beginning_with_another_checkpoint_in_sync"
    r"|two_in_turns_(in_sync|with_all_reduce)|saving_listeners_with_all_reduce)",
    # One device a worker with a server; the modes with own models in test_estimator_parity.py.
    "test_estimator_keras.py": r"two_devices_a_worker|test_sync|test_all_reduce",
    # Each way to end in one mode.
    "test_estimator_ends.py": r"test_(all_end_together_in_sync|early_stopping_(in_sync|async))",
    # Without moving statistics, which are in test_estimator_parity.py; in sync.
    "test_estimator_evaluation.py": r"\[2-ranks-normalized\]|\[3-ranks-async\]",
    # Adam, which has slots.
    "test_estimator_server_steps.py": r"test_no_step_of_several",
    # The chief dies; an absent chief in the other mode.
    "test_estimator_faults.py": r"with_all_reduce\[1\]|test_an_absent_chief\[3-ranks-sync\]"
    r"|cannot_be_written\[async\]",
    # A SavedModel of all modes; test_estimator_canned.py exports, too.
    "test_estimator_export.py": r"test_(exporters|a_model_fn_of_keras_layers)",
    # In sync, and by all-reduce.
    "test_estimator_preemption.py": r"\[async\]",
    # Of imports one each; the other extra, the other Keras.
    "test_estimator_api.py": r"imports_nothing\w+\[1\]|what_to_type\[tf_keras\]",
    # The README's program runs. Of examples what the tests of their strategies have: kills in
    # test_elastic_faults.py and test_resume_after_kills.py, bytes in test_local_updates.py, tables
    # in parallel/embedding.
    "test_examples.py": r"test_fashion_mnist_sends|test_parameter_server(_alone|\[(sync|three)\])"
    r"|test_movielens_(beside_plain_keras|alone)|test_horovod_style|test_elastic_ends|test_criteo"
    r"|goes_on_after_it_was_killed|test_local_updates_send_less"
    r"|multi_worker_with_keras_saves|test_parameter_server\[two\]|programs_for_parameter_servers"
    r"|programs_of_the_porting_guide|program_for_several_devices"
    r"|first_program\w+\[docs/(compression|multi_worker|resume|elastic|local_updates)",
    # Adam, and one of each family; test_server_optimizers.py has the optimizers themselves.
    "test_estimator_optimizers.py": r"test_one_worker\[3-ranks-(adagrad|v1_adam|v1_sgd"
    r"|sgd)\]|test_in_sync\[3-ranks-(?!adam\])|test_canned_in_sync"
    r"|test_on_the_worker\[2-ranks-(v1_ftrl_rows|adagrad_epsilon|v1_momentum|v1_adam)\]",
    # The canned estimator with all-reduce, and models of our own in the other modes. Going on and
    # back, and moving statistics, in sync; test_estimator_resume.py goes on, too.
    "test_estimator_parity.py": r"test_canned_(in_sync|async)|test_sync_with_two_servers"
    r"|test_all_reduce_on_three|test_(all_reduce|sync|async)_goes_on|statistics_with_all_reduce",
    "test_ps_optimizers.py": r"test_on_the_server\[2-ranks-"
    r"(nesterov|centered|amsgrad|adamax|lion|adamw|clipvalue|clipnorm|momentum|rmsprop)\]"
    r"|test_on_the_worker\[2-ranks-(lamb|adafactor|adadelta|nadam)\]"
    r"|test_known_ones\w+\[2-ranks-momentum\]",
    # The collectives that find a stopped worker, and those that clip, are those without tables.
    # Servers that are killed between two steps, and a worker in a step.
    "test_elastic_tables.py": r"test_parity\[True\]|test_stopped|test_servers_and",
    # An optimizer with slots, one with a step count, and each kind of gradient once.
    "test_embedding_parity.py": r"test_of_rows\[3-ranks-(sgd|momentum|rmsprop"
    r"|group_ftrl)\]|test_of_model\[3-ranks-(clipnorm|clipvalue|accumulation|loss_scale_factor|schedule)\]"
    r"|test_beside_all_reduce\[4-ranks-loss_scale\]|test_two_workers_in_sync\[4-ranks-adam\]"
    r"|test_tf_keras\[2-ranks-global_clipnorm\]|beside_all_reduce\[3-ranks-loss_scale\]",
    # Rank 0 dies in each kind of loop, and rank 1 where it joins again. Stopped members that come
    # back in test_membership_processes.py.
    "test_run.py": r"of_a_step\[(devices|strategy|tape)-1\]|and_joins\[tape-0\]|was_stopped_joins",
    "test_membership_partition.py": r"heals\[groups1\]|a_newcomer\[2\]|another_host\[1-",
    # In float64 each kind of fault is exact. One kill at a time; test_membership_partition.py has
    # silent members that come back. Leaves in test_growth and test_ledger.
    "test_elastic_faults.py": r"test_rounding|test_stopped|test_two_at_once|test_planned_leaves",
    # test_preemption.py has the notice, tests/single/launch what the launcher makes of it.
    "test_preempted_jobs.py": r"the_page_s_program",
    # Programs of pages; batches of tasks in test_tasks_together.py and test_tasks_async.py.
    "test_tasks_docs.py": r".",
    # test_ps_sync.py has the parity of each mode.
    "test_models_on_workers.py": r"test_sync",
    # Two workers with a hub in all-reduce, and four with servers.
    "test_stop_agreement.py": r"same_step\[(4-\w+-all_reduce|4-(one|all)-servers|2-\w+-servers)\]",
    # Data that is opened once, and once an epoch, in each test; a backup of a notice.
    "test_elastic_tf_keras.py": r"newcomer\w+\[(arrays in batches|generator)\]"
    r"|from_the_backup\[\w+-killed\]|test_each_mode|test_datasets_with_validation",
    # It waits for half a minute; other tests cover the timers that end the wait.
    "test_lost_machine.py": r"test_both_sides",
    # The same; test_membership.py has partitions without a network.
    "test_elastic_partition.py": r".",
    # The same calls, and what becomes of each, in test_strangers.py.
    "test_elastic_strangers.py": r".",
    # Both strategies of several devices reduce with the same code; elastic workers with that of
    # workers.
    "test_own_steps.py": r"\[central-(?!ragged)",
    "test_own_steps_on_workers.py": r"test_elastic",
    "test_tuner_on_devices.py": r"\[central\]",
    # They need a Debian package and root; test_hosts.py has the same without ssh.
    "test_hosts_over_ssh.py": r".",
    # Programs of the page; test_parity.py and test_memory.py have the rest.
    "test_device_examples.py": r".",
    # What there is in a process is counted; how much memory that is takes a minute.
    "test_memory.py": r"test_the_memory_in_use",
    # The programs of pages; their folders have tests of all that they use.
    "test_collectives_docs.py": r".",
    "test_metrics_docs.py": r".",
    "test_observability_docs.py": r"test_the_example",
    "test_security.py": r"test_the_commands_of_the_page",
    # It compiles the op library under sanitizers, and starts two jobs; test_ps_unauthenticated.py
    # has strangers, and tests/core hostile workers under sanitizers.
    "test_ps_under_attack.py": r".",
    # Strings.
    "test_embedding_export.py": r"without_tfdist\[1-rank-(tf_)?keras\]",
    # Of the modes the one that waits, and large snapshots.
    "test_ps_faults.py": r"came_after_the_snapshot\[(async|ssp)\]",
    # Real processes, and root; test_manifests.py has what each pod finds out of its variables.
    "test_kubelet.py": r".",
    # They need a Debian package and root, and compile the op library once more.
    "test_dockerfile.py": r"test_the_image",
    # test_launch_restarts.py and test_launch.py have the same on one machine.
    "test_hosts.py": r"test_restarts_and_more",
    # The parsing is in test_host_list.py.
    "test_elastic_hosts.py": r"test_bad_answers",
    # Three processes that import TensorFlow, and three hosts; its other cases have what they print.
    "test_check.py": r"test_(the_command|a_slow_link)",
    # It needs a Debian package; test_metrics.py has what Prometheus reads.
    "test_prometheus.py": r".",
    # They need the engines themselves; test_environments.py has what their variables mean, and
    # test_ray_request.py the arguments of tfdist.ray.run.
    "test_slurm.py": r".",
    "test_mpi.py": r".",
    "test_ray.py": r".",
    # test_stragglers.py has what its commands show.
    "test_dashboard_docs.py": r".",
    # It needs a Debian package; test_dashboard.py has what the server answers.
    "test_dashboard_page.py": r".",
    # Nested inputs and strings in test_keras_inputs.py.
    "test_ps_front_ends.py": r"test_tf_keras_in_sync\[3-ranks-adam\]"
    r"|test_tf_keras\[2-ranks-(sgd|momentum)\]|test_embedding_in_sync\[3-ranks-(Adam|SGD)\]"
    r"|test_an_optimizer_that\w+\[3-ranks-Nadam\]|test_(nested_inputs|strings)_in_sync"
    r"|test_custom_loop\[2-ranks-(sgd|momentum)\]",
    "test_ps_sync.py": r"test_two_workers\[3-ranks-(sgd|momentum|nadam)\]"
    r"|test_last_batch\[3-ranks-uneven\]|test_three_workers_and_two_servers\[5-ranks-sgd\]",
    "test_tf_keras.py": r"test_fit_evaluate_predict\[2-ranks-(sgd|momentum)\]"
    r"|test_embedding\[2-ranks-(sgd|adagrad)\]",
    # The chief restarts as a worker does; test_ps_faults.py has servers without snapshots.
    # A worker that fails comes back as one that is killed. Backups in test_resume_after_kills.py.
    "test_restarted_jobs.py": r"\[chief 0\]|exits_with_a_failure|server_is_replaced"
    r"|all_reduce_resumes",
    # Adam, which has slots. Accumulation in test_optimizers.py and test_keras_optimizers.py.
    "test_several_devices.py": r"test_fit_evaluate_predict\[2-ranks-(momentum|accumulation)\]",
    # In Keras 3.
    "test_ps_metrics.py": r"test_async\[3-ranks-tf_keras\]",
    # They wait for timeouts. The queue's `lost` and its end in test_task_queue.py; another reason
    # that the server gives.
    "test_tasks_last_epoch.py": r"test_(a_job_that_loses|a_worker_that_makes_no_progress)",
    "test_ps_cannot_serve.py": r"test_metrics",
    # Async, in which more can go wrong; test_tasks_async.py has the end of an epoch in sync.
    "test_ledger.py": r"test_each_record_counts_once\[sync\]",
    # Shapes, a rank that is late and the page's example in the default tier; the exception of a
    # script in test_recorder.py.
    "test_hangs.py": r"\[(other_dtype|missing_rank|exception)\]",
    # It imports TensorFlow in three time namespaces; test_clock_namespaces.py measures in one.
    # Parameter servers record with the same code.
    "test_timeline_jobs.py": r"test_(clocks_of_time_namespaces|parameter_servers)",
    # Keras 3 in the default tier; a killed dispatcher in another mode.
    # A killed data worker in the mode that loses most.
    # The page's program only trains.
    "test_data_service.py": r"test_the_first_program|test_tf_keras|begins_again|killed_dispatcher"
    r"|without_the_launcher|under_a_synchronous|test_the_example|take_what_is_left",
    # LSTM, and classifiers and regressors of each kind. Stopping in test_estimator_ends.py.
    "test_estimator_canned.py": r"test_recurrent\[(gru|simple_rnn|own)\]|test_early_stopping"
    r"|test_trains_evaluates\w+\[(DNNLinearCombined|DNN|Linear|Baseline)Estimator\]"
    r"|test_trains_evaluates\w+\[(DNN|DNNLinearCombined|Linear)Regressor\]"
    r"|test_trains_evaluates\w+\[(DNNLinearCombined|Baseline)Classifier\]",
    "test_estimator_keras_models.py": r"test_trains_and_evaluates\w+"
    r"\[(momentum|adagrad|names|function)\]",
    # Exporters; another process reads their models.
    "test_estimator_tf_keras.py": r"\[(devices/|.*test_estimator_(canned|model_fns|export))",
    # A notice to all tasks; to one of them in test_stop_agreement.py.
    "test_preemption.py": r"after_the_same_step\[(worker|chief)\]|test_tf_keras\[100\]"
    r"|a_backup_is_kept\[False\]",
    "test_ps_preemption.py": r"\[(async-all|sync-worker)\]",
    # torchrun; what is found is the same, and tests/single/config has each environment.
    "test_found_clusters.py": r"\[open_mpi\]|test_a_parameter_server",
    # The sums, and a step that fails.
    "test_tuned_buckets.py": r"test_fit_ends",
    # parameter_server and overlap run the same parts; memory is a soak; of data workers
    # test_data_service.py, of elastic jobs test_elastic_faults.py.
    "test_benchmarks.py": r"test_(local_reduce|compression|embedding|data_service|scale|task"
    r"|elastic|epochs|preemption)",
    "test_communication_benchmarks.py": r"test_(all_reduce|network|planner|training_step|timeline"
    r"|sizes_of_buckets|memory)",
}


def is_long(test: str) -> bool:
    """Whether a test is excluded; its id is such as "tests/devices/test_inputs.py::test_fit"."""
    path, _, name = test.partition("::")
    pattern = LONG_CASES.get(path.rpartition("/")[2])
    return pattern is not None and re.search(pattern, name) is not None
