// The C functions of core/ps/server/server_c_api.cc, which Python declares for itself.
#ifndef TFDIST_TESTS_CORE_PS_SERVER_C_API_H_
#define TFDIST_TESTS_CORE_PS_SERVER_C_API_H_

#include <cstddef>
#include <cstdint>

#include "core/ps/server/server.h"
#include "core/ps/table/rows_c_api.h"
#include "core/ps/table/table.h"

extern "C" {
struct tfdist_ps_saved_table {
  const char* description;
  uint64_t description_bytes;
  const char* name;
  uint64_t content_floats;
  double learning_rate;
  int64_t step;
};
int tfdist_ps_server_restore_shard(int64_t, const char*, int, uint64_t, const void*, uint64_t, bool,
                                   char*, size_t);
int tfdist_ps_server_restore_table(int64_t, const tfdist_ps_saved_table*, int*, char*, size_t);
int tfdist_ps_server_restore_rows(int64_t, int, const tfdist_ps_rows*, uint64_t, int, int, char*,
                                  size_t);
void tfdist_ps_server_restore_time(int64_t, double);
void tfdist_ps_server_restore_task(int64_t, const char*, uint64_t);
int tfdist_ps_server_restore_end(int64_t, char*, size_t);
void tfdist_ps_server_restore_nothing(int64_t);
int tfdist_ps_server_replay_log(int64_t, const char*, uint64_t*, uint64_t*, char*, size_t);
int tfdist_ps_server_checkpoint(int64_t, bool, const char*, int64_t*, char*, size_t);
bool tfdist_ps_server_table_stats(int64_t, uint64_t, char*, size_t, tfdist::ps::TableStats*);
void tfdist_ps_server_of_ids(const int64_t*, uint64_t, int, int32_t*);
uint64_t tfdist_ps_snapshot_unclaimed_count(int64_t);
bool tfdist_ps_snapshot_table(int64_t, uint64_t, tfdist_ps_saved_table*);
int tfdist_ps_snapshot_next_rows(int64_t, uint64_t, uint64_t, tfdist_ps_rows*);
struct tfdist_ps_server_options {
  int32_t index, mode, workers, num_aggregate, staleness, hogwild, compensation, refuse_unlogged,
      threads, has_chief, elastic;
  double worker_timeout_seconds, start_timeout_seconds, compensation_lambda;
  uint64_t trace_events, memory_budget;
};
int tfdist_ps_server_create(const tfdist_ps_server_options*, const char*, int, int, int64_t*, int*,
                            char*, size_t);
int tfdist_ps_server_restore_progress(int64_t, const uint64_t*, uint64_t, char*, size_t);
int tfdist_ps_server_start(int64_t, const uint8_t*, char*, size_t);
uint64_t tfdist_ps_server_incarnation(int64_t);
int tfdist_ps_server_wait_event(int64_t, double, int*, int*, char*, size_t);
void tfdist_ps_server_waits(int64_t, bool*);
void tfdist_ps_server_stats(int64_t, tfdist::ps::ServerStats*);
uint64_t tfdist_ps_server_trace(int64_t, tfdist::ps::TraceEvent*, uint64_t);
void tfdist_ps_server_close(int64_t);
uint64_t tfdist_ps_snapshot_count(int64_t);
bool tfdist_ps_snapshot_entry(int64_t, uint64_t, const char**, int*, uint64_t*, const void**,
                              uint64_t*);
bool tfdist_ps_snapshot_progress(int64_t, const uint64_t**, uint64_t*);
void tfdist_ps_snapshot_free(int64_t);
}

#endif  // TFDIST_TESTS_CORE_PS_SERVER_C_API_H_
