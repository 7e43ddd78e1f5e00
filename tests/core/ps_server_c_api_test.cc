// A parameter server as Python sees it: functions of C, found by name.
#include "raw_ps_worker.h"

extern "C" {
struct tfdist_ps_server_options {
  int32_t index, mode, workers, num_aggregate, staleness, hogwild, compensation, threads, has_chief;
  double worker_timeout_seconds, start_timeout_seconds, compensation_lambda;
  uint64_t trace_events;
};
int tfdist_ps_server_create(const tfdist_ps_server_options*, int, int64_t*, int*, char*, size_t);
int tfdist_ps_server_restore_entry(int64_t, const char*, int, uint64_t, const void*, uint64_t,
                                   char*, size_t);
int tfdist_ps_server_restore_progress(int64_t, const uint64_t*, uint64_t, char*, size_t);
int tfdist_ps_server_start(int64_t, const uint8_t*, char*, size_t);
uint64_t tfdist_ps_server_incarnation(int64_t);
int tfdist_ps_server_wait_event(int64_t, double, int*, int*, char*, size_t);
void tfdist_ps_server_stats(int64_t, tfdist::ps::ServerStats*);
uint64_t tfdist_ps_server_trace(int64_t, tfdist::ps::TraceEvent*, uint64_t);
void tfdist_ps_server_close(int64_t);
int tfdist_ps_server_freeze(int64_t, int64_t*, char*, size_t);
uint64_t tfdist_ps_image_count(int64_t);
bool tfdist_ps_image_entry(int64_t, uint64_t, const char**, int*, uint64_t*, const void**,
                           uint64_t*);
bool tfdist_ps_image_progress(int64_t, const uint64_t**, uint64_t*);
void tfdist_ps_image_free(int64_t);
}

namespace tfdist::testing {
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
    code = tfdist_ps_server_create(&options, 0, &handle, &port, error, sizeof(error));
  }
  ~Api() { tfdist_ps_server_close(handle); }

  int64_t handle = 0;
  int port = 0, code = 0;
  char error[60];
};

void TestLife() {
  Api api(2);
  EXPECT(api.code == 0 && api.handle != 0 && api.port > 0);
  const Floats saved = {1, 2};
  EXPECT(tfdist_ps_server_restore_entry(api.handle, "w", 3, 2, saved.data(), 8, api.error,
                                        sizeof(api.error)) == 0);
  EXPECT(tfdist_ps_server_start(api.handle, TestToken().data(), api.error, sizeof(api.error)) == 0);
  EXPECT(tfdist_ps_server_start(api.handle, TestToken().data(), api.error, sizeof(api.error)) == 9);
  EXPECT(std::string(api.error).substr(0, 10) == "the server");

  const uint64_t incarnation = tfdist_ps_server_incarnation(api.handle);
  RawPsWorker worker(api.port, incarnation, 1);
  int kind = 0, rank = 0;
  char text[10];
  EXPECT(tfdist_ps_server_wait_event(api.handle, 20, &kind, &rank, text, sizeof(text)) == 1);
  EXPECT(kind == 1 && rank == 1);
  EXPECT(tfdist_ps_server_wait_event(api.handle, 0, &kind, &rank, text, sizeof(text)) == 0);
  const uint32_t w = worker.Create("w", DType::kFloat32, 2, "");
  EXPECT(worker.Value(w, true) == saved);
  for (int i = 0; i < 5; ++i) worker.Push(w, UpdateKind::kDelta, Floats{1, 1});
  ServerStats stats;
  tfdist_ps_server_stats(api.handle, &stats);
  EXPECT(stats.pushes == 5 && stats.shards == 1 && stats.connections == 1);
  TraceEvent events[3];
  EXPECT(tfdist_ps_server_trace(api.handle, events, 3) == 3);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT(events[i].kind == 2 && events[i].worker == 1 && events[i].clock == i + 3);
  }

  int64_t image = 0;
  EXPECT(tfdist_ps_server_freeze(api.handle, &image, api.error, sizeof(api.error)) == 0);
  tfdist_ps_server_close(api.handle);
  worker.peer().AwaitClose();
  EXPECT(tfdist_ps_image_count(image) == 1);
  const char* name = nullptr;
  int dtype = 0;
  uint64_t elements = 0, bytes = 0, count = 0;
  const void* data = nullptr;
  const uint64_t* progress = nullptr;
  EXPECT(tfdist_ps_image_entry(image, 0, &name, &dtype, &elements, &data, &bytes));
  EXPECT(std::string(name) == "w" && dtype == 3 && elements == 2 && bytes == 8);
  EXPECT(Values<float>({static_cast<const char*>(data), bytes}) == Floats({6, 7}));
  EXPECT(!tfdist_ps_image_entry(image, 1, &name, &dtype, &elements, &data, &bytes));
  EXPECT(tfdist_ps_image_progress(image, &progress, &count));

  Api next(2);
  EXPECT(tfdist_ps_server_restore_entry(next.handle, "w", dtype, elements, data, bytes, next.error,
                                        sizeof(next.error)) == 0);
  EXPECT(tfdist_ps_server_restore_progress(next.handle, progress, count, next.error,
                                           sizeof(next.error)) == 0);
  tfdist_ps_image_free(image);
  EXPECT(!tfdist_ps_image_progress(image, &progress, &count));
  EXPECT(tfdist_ps_server_start(next.handle, TestToken().data(), next.error, sizeof(next.error)) ==
         0);
  RawPsWorker again(next.port, tfdist_ps_server_incarnation(next.handle), 1);
  again.sequence = 4;
  again.Push(w, UpdateKind::kDelta, Floats{100, 100});  // the fifth is in the image
  EXPECT(again.Value(w) == Floats({6, 7}));
}

void TestErrors() {
  Api none(0);
  EXPECT(none.code == 3);
  EXPECT_CONTAINS(none.error, "parameter server 3: expected at least 1 worker, received 0");
  Api api(1);
  EXPECT(tfdist_ps_server_restore_entry(api.handle, "w", 99, 0, nullptr, 0, api.error,
                                        sizeof(api.error)) == 3);
  EXPECT_CONTAINS(api.error, "saved shard 'w': unknown dtype 99");
  EXPECT(tfdist_ps_server_restore_entry(api.handle, "w", 3, 2, "abcd", 4, api.error,
                                        sizeof(api.error)) == 0);
  EXPECT(tfdist_ps_server_start(api.handle, TestToken().data(), api.error, sizeof(api.error)) == 3);
  EXPECT_CONTAINS(api.error, "saved shard 'w': float32[2] does not fit 4 bytes");
  EXPECT(tfdist_ps_server_start(api.handle, TestToken().data(), api.error, sizeof(api.error)) == 9);
  tfdist_ps_server_close(api.handle);
  int64_t image = 0;
  int kind = 0, rank = 0;
  char text[1];
  EXPECT(tfdist_ps_server_freeze(api.handle, &image, api.error, sizeof(api.error)) == 9);
  EXPECT_CONTAINS(api.error, "was closed");
  EXPECT(tfdist_ps_server_wait_event(api.handle, 20, &kind, &rank, text, 1) == -1);
  EXPECT(tfdist_ps_server_incarnation(api.handle) == 0);
  EXPECT(tfdist_ps_server_trace(api.handle, nullptr, 0) == 0);
  EXPECT(tfdist_ps_image_count(77) == 0);
}

void Main() {
  TestLife();
  TestErrors();
  std::puts("ps server, c api: ok");
}

}  // namespace
}  // namespace tfdist::testing

int main() { tfdist::testing::Main(); }
