// Failures of a client's operations, and their messages.
#include <sys/mman.h>

#include "ps/worker.h"

namespace tfdist::testing::ps_client_errors_test {
namespace {

TEST_CASE("refusals") {
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0, 1, 2, 0.3);
  worker.Connect(*server, 1);
  const int a = worker.Add("a", {2}, DType::kFloat32, 1);
  const Status early = worker.Pull({a}, false);
  CHECK_STATUS(early, StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(early.message(), "parameter 'a' has not been created on ps 1");
  CHECK_STATUS(worker.Pull({a + 1}, false), StatusCode::kInvalidArgument);
  CHECK_OK(worker.Create<float>(a, {1, 2}));
  // A refusal names the server; the next pull reports the refusal of a push.
  const int b = worker.Add("b", {2}, DType::kInt64, 1);
  CHECK_OK(worker.Create<int64_t>(b, {1, 2}));
  const Status unfit = worker.BindSgd({b});
  CHECK_STATUS(unfit, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(unfit.message(), "ps 1: ");
  CHECK_OK(worker.Pull({a}, false));
  worker.client().GiveUp(0, Status(StatusCode::kUnavailable, "ps 0 is gone for good"));
  for (const bool flush : {false, true}) {
    worker.Stage(a, {1, 1});  // no optimizer is bound
    CHECK_OK(worker.PushStaged());
    const Status status = flush ? worker.client().Flush(kPatience) : worker.Pull({a}, false);
    CHECK(!status.ok());
    CHECK_OK(worker.Pull({a}, false));  // reported once
  }
  const Status gone = worker.Pull({a}, true);  // a step goes to all servers
  CHECK_STATUS(gone, StatusCode::kUnavailable);
  CHECK(gone.message() == "ps 0 is gone for good");

  const Status stranger = worker.Connect(1, server->port(), server->incarnation() + 1, 5);
  CHECK(!stranger.ok());
  CHECK_CONTAINS(stranger.message(), "cannot connect to ps 1 (127.0.0.1:");
  worker.client().Close();
  CHECK_STATUS(worker.Pull({a}, false), StatusCode::kCancelled);
  CHECK_STATUS(worker.Connect(1, server->port(), server->incarnation()), StatusCode::kCancelled);
  CHECK(worker.client().WaitForLost(10) == -1);
}

// Values that the server cannot read in the worker's memory are sent.
TEST_CASE("unreadable memory") {
  constexpr size_t kCount = 1 << 18;
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0);
  worker.Connect(*server);
  const int a = worker.Make("a", Filled(kCount, 1.0f));
  REQUIRE_OK(worker.BindSgd({a}));
  CHECK_OK(worker.Pull({a}));
  const size_t bytes = kCount * sizeof(float);
  void* const memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  const std::shared_ptr<void> owner(memory, [bytes](void* mapped) { munmap(mapped, bytes); });
  ps::Gradient gradient;
  gradient.parameter = a;
  gradient.values = {static_cast<char*>(memory), owner};
  worker.client().parameters().Stage({}, {std::move(gradient)});
  CHECK_OK(worker.PushStaged());
  CHECK_STATUS(worker.client().Flush(0.2), StatusCode::kDeadlineExceeded);
  CHECK(server->stats().pushes == 0);
  CHECK(mprotect(memory, bytes, PROT_READ | PROT_WRITE) == 0);  // for the kernel, which sends it
  CHECK_OK(worker.client().Flush(kPatience));
  CHECK(server->stats().pushes == 1);
  CHECK_OK(worker.Pull({a}));
  CHECK(worker.Value(a) == Filled(kCount, 1.0f));  // a gradient of zeros
}

TEST_CASE("closing ends waits") {
  const auto server = StartServer(SyncJob(2));
  Worker worker(0, 2);
  worker.Connect(*server);
  const int a = worker.Make<float>("a", {1});
  CHECK_OK(worker.Pull({a}));
  CHECK_OK(worker.Push<float>({{a, {2}}}));
  Ending held_back = worker.StartPull({a});
  Ending behind = worker.StartPull({a}, false);
  CHECK(StillRuns(held_back, 0.05));
  worker.client().Close();
  CHECK_STATUS(Wait(held_back), StatusCode::kCancelled);
  CHECK_STATUS(Wait(behind), StatusCode::kCancelled);
}

}  // namespace
}  // namespace tfdist::testing::ps_client_errors_test
