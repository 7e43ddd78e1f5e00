// The C functions of a parameter server that Python calls.
#include <algorithm>

#include "core/ps/table/table.h"
#include "ps/raw_ps_worker.h"
#include "ps/server_c_api.h"

namespace tfdist::testing::ps_server_c_api_test {
namespace {

struct Api {
  explicit Api(int workers) {
    tfdist_ps_server_options options{};
    options.index = 3;
    options.mode = 1;
    options.workers = workers;
    options.num_aggregate = workers;
    options.threads = 2;
    options.worker_timeout_seconds = options.start_timeout_seconds = 60;
    options.trace_events = 4;
    code = tfdist_ps_server_create(&options, "", 0, 1, &handle, &port, error, sizeof(error));
  }
  ~Api() { tfdist_ps_server_close(handle); }

  int64_t handle = 0;
  int port = 0, code = 0;
  char error[60];
};

TEST_CASE("life") {
  Api api(2);
  CHECK((api.code == 0 && api.handle != 0 && api.port > 0));
  const Floats saved = {1, 2};
  CHECK(tfdist_ps_server_restore_shard(api.handle, "w", 3, 2, saved.data(), 8, false, api.error,
                                       sizeof(api.error)) == 0);
  CHECK(tfdist_ps_server_start(api.handle, TestKey().data(), api.error, sizeof(api.error)) == 0);
  CHECK(tfdist_ps_server_start(api.handle, TestKey().data(), api.error, sizeof(api.error)) == 9);
  CHECK(std::string(api.error).substr(0, 10) == "the server");

  const uint64_t incarnation = tfdist_ps_server_incarnation(api.handle);
  RawPsWorker worker(api.port, incarnation, 1);
  int kind = 0, rank = 0;
  char text[10];
  CHECK(tfdist_ps_server_wait_event(api.handle, 20, &kind, &rank, text, sizeof(text)) == 1);
  CHECK((kind == 1 && rank == 1));
  CHECK(tfdist_ps_server_wait_event(api.handle, 0, &kind, &rank, text, sizeof(text)) == 0);
  const uint32_t w = worker.Create("w", DType::kFloat32, 2, "");
  CHECK(worker.Value(w, true) == saved);
  for (int i = 0; i < 5; ++i) worker.Push(w, UpdateKind::kDelta, Floats{1, 1});
  bool waits[4] = {true, true, true, true};
  tfdist_ps_server_waits(api.handle, waits);
  CHECK((!waits[0] && !waits[1] && !waits[2] && !waits[3]));
  ServerStats stats;
  tfdist_ps_server_stats(api.handle, &stats);
  CHECK((stats.pushes == 5 && stats.shards == 1 && stats.connections == 1));
  TraceEvent events[3];
  CHECK(tfdist_ps_server_trace(api.handle, events, 3) == 3);
  for (uint64_t i = 0; i < 3; ++i) {
    CHECK((events[i].kind == 2 && events[i].worker == 1 && events[i].clock == i + 3));
  }

  int64_t snapshot = 0;
  CHECK(tfdist_ps_server_checkpoint(api.handle, false, "", &snapshot, api.error,
                                    sizeof(api.error)) == 0);
  tfdist_ps_server_close(api.handle);
  worker.peer().AwaitClose();
  CHECK(tfdist_ps_snapshot_count(snapshot) == 1);
  const char* name = nullptr;
  int dtype = 0;
  uint64_t elements = 0, bytes = 0, count = 0;
  const void* data = nullptr;
  const uint64_t* progress = nullptr;
  CHECK(tfdist_ps_snapshot_entry(snapshot, 0, &name, &dtype, &elements, &data, &bytes));
  CHECK((std::string(name) == "w" && dtype == 3 && elements == 2 && bytes == 8));
  CHECK(Values<float>({static_cast<const char*>(data), bytes}) == Floats({6, 7}));
  CHECK(!tfdist_ps_snapshot_entry(snapshot, 1, &name, &dtype, &elements, &data, &bytes));
  CHECK(tfdist_ps_snapshot_progress(snapshot, &progress, &count));

  Api next(2);
  CHECK(tfdist_ps_server_restore_shard(next.handle, "w", dtype, elements, data, bytes, false,
                                       next.error, sizeof(next.error)) == 0);
  CHECK(tfdist_ps_server_restore_progress(next.handle, progress, count, next.error,
                                          sizeof(next.error)) == 0);
  tfdist_ps_snapshot_free(snapshot);
  CHECK(!tfdist_ps_snapshot_progress(snapshot, &progress, &count));
  CHECK(tfdist_ps_server_start(next.handle, TestKey().data(), next.error, sizeof(next.error)) == 0);
  RawPsWorker again(next.port, tfdist_ps_server_incarnation(next.handle), 1);
  again.sequence = 4;
  again.Push(w, UpdateKind::kDelta, Floats{100, 100});  // the fifth is in the snapshot
  CHECK(again.Value(w) == Floats({6, 7}));
}

TEST_CASE("errors") {
  Api none(0);
  CHECK(none.code == 3);
  CHECK_CONTAINS(none.error, "parameter server 3: expected at least 1 worker, received 0");
  Api api(1);
  CHECK(tfdist_ps_server_restore_shard(api.handle, "w", 99, 0, nullptr, 0, false, api.error,
                                       sizeof(api.error)) == 3);
  CHECK_CONTAINS(api.error, "saved shard 'w': unknown dtype 99");
  CHECK(tfdist_ps_server_restore_shard(api.handle, "w", 3, 2, "abcd", 4, false, api.error,
                                       sizeof(api.error)) == 0);
  CHECK(tfdist_ps_server_start(api.handle, TestKey().data(), api.error, sizeof(api.error)) == 3);
  CHECK_CONTAINS(api.error, "saved shard 'w': float32[2] does not fit 4 bytes");
  CHECK(tfdist_ps_server_start(api.handle, TestKey().data(), api.error, sizeof(api.error)) == 9);
  // A shard that waits for its worker, and one whose size wraps around to 16 bytes.
  for (const uint64_t elements : {uint64_t{1000}, (uint64_t{1} << 62) + 4}) {
    Api other(1);
    CHECK(tfdist_ps_server_restore_shard(other.handle, "w", 3, elements, "0123456789abcdef", 16,
                                         true, other.error, sizeof(other.error)) == 0);
    CHECK(tfdist_ps_server_restore_end(other.handle, other.error, sizeof(other.error)) == 3);
    CHECK_CONTAINS(other.error, "saved shard 'w': float32[");
  }
  tfdist_ps_server_close(api.handle);
  int64_t snapshot = 0;
  int kind = 0, rank = 0;
  char text[1];
  CHECK(tfdist_ps_server_checkpoint(api.handle, false, "", &snapshot, api.error,
                                    sizeof(api.error)) == 9);
  CHECK_CONTAINS(api.error, "was closed");
  CHECK(tfdist_ps_server_wait_event(api.handle, 20, &kind, &rank, text, 1) == -1);
  CHECK(tfdist_ps_server_incarnation(api.handle) == 0);
  bool waits[1] = {false};
  tfdist_ps_server_waits(api.handle, waits);
  CHECK(!waits[0]);
  CHECK(tfdist_ps_server_trace(api.handle, nullptr, 0) == 0);
  CHECK(tfdist_ps_snapshot_count(77) == 0);
}

std::string Description(const std::string& name, uint32_t width) {
  ps::TableConfig config;
  config.width = width;
  return Encode(ps::TableRequest{{{name, config}}});
}

int RestoreTable(Api& api, const std::string& description, uint64_t floats, int* index) {
  const tfdist_ps_saved_table saved{
      description.data(), description.size(), nullptr, floats, 0.5, 3};
  return tfdist_ps_server_restore_table(api.handle, &saved, index, api.error, sizeof(api.error));
}

// Restores the rows of 0 to 99 that one of two servers has, and takes a snapshot.
TEST_CASE("tables") {
  std::vector<int64_t> ids(100);
  Floats content;
  for (int64_t i = 0; i < 100; ++i) {
    ids[i] = i;
    content.insert(content.end(), {static_cast<float>(i), 0.5f});
  }
  const std::vector<uint32_t> used(100, 7), counts(100, 8);
  const tfdist_ps_rows rows{100,    0, ids.data(), used.data(), counts.data(), content.data(),
                            nullptr};
  std::vector<int32_t> servers(100);
  tfdist_ps_server_of_ids(ids.data(), 100, 2, servers.data());
  Api api(1);
  int index = -1;
  for (int attempt = 0; attempt < 2; ++attempt) {
    CHECK((RestoreTable(api, Description("t", 2), 2, &index) == 0 && index == 0));
    CHECK((RestoreTable(api, Description("u", 1), 1, &index) == 0 && index == 1));
    CHECK((RestoreTable(api, Description("t", 2), 2, &index) == 0 && index == 0));
    if (attempt == 0) tfdist_ps_server_restore_nothing(api.handle);
  }
  CHECK(tfdist_ps_server_restore_rows(api.handle, 0, &rows, 2, 1, 2, api.error,
                                      sizeof(api.error)) == 0);
  const float shard = 3;
  CHECK(tfdist_ps_server_restore_shard(api.handle, "w", 3, 1, &shard, 4, true, api.error,
                                       sizeof(api.error)) == 0);
  CHECK(tfdist_ps_server_restore_end(api.handle, api.error, sizeof(api.error)) == 0);

  char name[10];
  ps::TableStats stats;
  CHECK(tfdist_ps_server_table_stats(api.handle, 0, name, sizeof(name), &stats));
  const auto here = static_cast<uint64_t>(std::count(servers.begin(), servers.end(), 1));
  CHECK((std::string(name) == "t" && stats.rows == here && here > 30 && here < 70));
  CHECK(tfdist_ps_server_table_stats(api.handle, 1, name, sizeof(name), &stats));
  CHECK((std::string(name) == "u" && stats.rows == 0));
  CHECK(!tfdist_ps_server_table_stats(api.handle, 2, name, sizeof(name), &stats));

  int64_t snapshot = 0;
  CHECK(tfdist_ps_server_checkpoint(api.handle, false, "", &snapshot, api.error,
                                    sizeof(api.error)) == 0);
  CHECK((tfdist_ps_snapshot_count(snapshot) == 1 &&
         tfdist_ps_snapshot_unclaimed_count(snapshot) == 1));
  tfdist_ps_saved_table table;
  CHECK((tfdist_ps_snapshot_table(snapshot, 0, &table) && std::string(table.name) == "t"));
  CHECK(std::string(table.description, table.description_bytes) == Description("t", 2));
  CHECK((table.content_floats == 2 && table.learning_rate == 0.5 && table.step == 3));
  CHECK((tfdist_ps_snapshot_table(snapshot, 1, &table) &&
         !tfdist_ps_snapshot_table(snapshot, 2, &table)));
  uint64_t found = 0;
  tfdist_ps_rows next;
  while (tfdist_ps_snapshot_next_rows(snapshot, 0, 3, &next)) {
    CHECK((next.count <= 3 && next.removed_count == 0));
    for (uint64_t i = 0; i < next.count; ++i, ++found) {
      CHECK((servers[next.ids[i]] == 1 && next.used[i] == 7 && next.counts[i] == 8));
      CHECK((next.content[2 * i] == static_cast<float>(next.ids[i]) &&
             next.content[2 * i + 1] == 0.5f));
    }
  }
  CHECK(found == here);
  CHECK(!tfdist_ps_snapshot_next_rows(snapshot, 1, 3, &next));
  CHECK(!tfdist_ps_snapshot_next_rows(snapshot, 2, 3, &next));
  tfdist_ps_snapshot_free(snapshot);
  CHECK((!tfdist_ps_snapshot_table(snapshot, 0, &table) &&
         tfdist_ps_snapshot_unclaimed_count(snapshot) == 0));
  CHECK(!tfdist_ps_snapshot_next_rows(snapshot, 0, 3, &next));
}

TEST_CASE("table errors") {
  Api api(1);
  int index = -1;
  CHECK(RestoreTable(api, "nonsense", 2, &index) == 3);
  CHECK_CONTAINS(api.error, "a saved table's description does not make sense");
  CHECK(RestoreTable(api, Description("t", 0), 0, &index) == 3);
  CHECK_CONTAINS(api.error, "expected a width from 1");
  CHECK(RestoreTable(api, Description("t", 2), 3, &index) == 3);
  CHECK_CONTAINS(api.error, "saved table 't': expected rows of 2 numbers");
  CHECK(RestoreTable(api, Description("t", 2), 2, &index) == 0);
  CHECK(RestoreTable(api, Description("t", 3), 3, &index) == 3);
  CHECK_CONTAINS(api.error, "saved table 't' has two configurations");
  // The same table once more, as a crafted file that follows another one says.
  CHECK(RestoreTable(api, Description("t", 2), 1, &index) == 3);
  CHECK_CONTAINS(api.error, "saved table 't': expected rows of 2 numbers");
  const int64_t id = 1;
  const uint32_t use = 0;
  const float number = 7;
  const tfdist_ps_rows narrow{1, 0, &id, &use, &use, &number, nullptr};
  CHECK(tfdist_ps_server_restore_rows(api.handle, 0, &narrow, 1, 0, 1, api.error,
                                      sizeof(api.error)) == 3);
  CHECK_CONTAINS(api.error, "saved table 't': expected rows of 2 numbers");
  const tfdist_ps_rows none{};
  for (const int wrong : {-1, 1}) {
    CHECK(tfdist_ps_server_restore_rows(api.handle, wrong, &none, 2, 0, 1, api.error,
                                        sizeof(api.error)) == 3);
  }
  uint64_t records = 0, left_out = 0;
  CHECK(tfdist_ps_server_replay_log(api.handle, "/nowhere/at/all", &records, &left_out, api.error,
                                    sizeof(api.error)) == 14);
  tfdist_ps_server_close(api.handle);
  int64_t snapshot = 0;
  CHECK(RestoreTable(api, Description("t", 2), 2, &index) == 9);
  CHECK(tfdist_ps_server_restore_rows(api.handle, 0, &none, 2, 0, 1, api.error,
                                      sizeof(api.error)) == 9);
  CHECK(tfdist_ps_server_restore_end(api.handle, api.error, sizeof(api.error)) == 9);
  CHECK(tfdist_ps_server_checkpoint(api.handle, true, "", &snapshot, api.error,
                                    sizeof(api.error)) == 9);
  CHECK(tfdist_ps_server_replay_log(api.handle, "", &records, &left_out, api.error,
                                    sizeof(api.error)) == 9);
  char name[1];
  ps::TableStats stats;
  CHECK(!tfdist_ps_server_table_stats(api.handle, 0, name, 1, &stats));
}

}  // namespace
}  // namespace tfdist::testing::ps_server_c_api_test
