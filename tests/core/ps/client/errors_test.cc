// Failures of a client's operations, and their messages.
#include <sys/mman.h>

#include "ps/worker.h"

namespace tfdist::testing::ps_client_errors_test {
namespace {

void TestRefusals() {
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0, 1, 2, 0.3);
  worker.Connect(*server, 1);
  const int a = worker.Add("a", {2}, DType::kFloat32, 1);
  const Status early = worker.Pull({a}, false);
  EXPECT_STATUS(early, StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(early.message(), "parameter 'a' has not been created on ps 1");
  EXPECT_STATUS(worker.Pull({a + 1}, false), StatusCode::kInvalidArgument);
  EXPECT_OK(worker.Create<float>(a, {1, 2}));
  // A refusal names the server; the next pull reports the refusal of a push.
  const int b = worker.Add("b", {2}, DType::kInt64, 1);
  EXPECT_OK(worker.Create<int64_t>(b, {1, 2}));
  const Status unfit = worker.BindSgd({b});
  EXPECT_STATUS(unfit, StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(unfit.message(), "ps 1: ");
  EXPECT_OK(worker.Pull({a}, false));
  worker.client().GiveUp(0, Status(StatusCode::kUnavailable, "ps 0 is gone for good"));
  for (const bool flush : {false, true}) {
    worker.Stage(a, {1, 1});  // no optimizer is bound
    EXPECT_OK(worker.PushStaged());
    const Status status = flush ? worker.client().Flush(kPatience) : worker.Pull({a}, false);
    EXPECT(!status.ok());
    EXPECT_OK(worker.Pull({a}, false));  // reported once
  }
  const Status gone = worker.Pull({a}, true);  // a step goes to all servers
  EXPECT_STATUS(gone, StatusCode::kUnavailable);
  EXPECT(gone.message() == "ps 0 is gone for good");

  const Status stranger = worker.Connect(1, server->port(), server->incarnation() + 1, 5);
  EXPECT(!stranger.ok());
  EXPECT_CONTAINS(stranger.message(), "cannot connect to ps 1 (127.0.0.1:");
  worker.client().Close();
  EXPECT_STATUS(worker.Pull({a}, false), StatusCode::kCancelled);
  EXPECT_STATUS(worker.Connect(1, server->port(), server->incarnation()), StatusCode::kCancelled);
  EXPECT(worker.client().WaitForLost(10) == -1);
}

// Values that the server cannot read in the worker's memory are sent.
void TestUnreadableMemory() {
  constexpr size_t kCount = 1 << 18;
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0);
  worker.Connect(*server);
  const int a = worker.Make("a", Filled(kCount, 1.0f));
  EXPECT_OK(worker.BindSgd({a}));
  EXPECT_OK(worker.Pull({a}));
  const size_t bytes = kCount * sizeof(float);
  void* const memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(memory != MAP_FAILED);
  const std::shared_ptr<void> owner(memory, [bytes](void* mapped) { munmap(mapped, bytes); });
  ps::Gradient gradient;
  gradient.parameter = a;
  gradient.values = {static_cast<char*>(memory), owner};
  worker.client().parameters().Stage({}, {std::move(gradient)});
  EXPECT_OK(worker.PushStaged());
  EXPECT_STATUS(worker.client().Flush(0.2), StatusCode::kDeadlineExceeded);
  EXPECT(server->stats().pushes == 0);
  EXPECT(mprotect(memory, bytes, PROT_READ | PROT_WRITE) == 0);  // for the kernel, which sends it
  EXPECT_OK(worker.client().Flush(kPatience));
  EXPECT(server->stats().pushes == 1);
  EXPECT_OK(worker.Pull({a}));
  EXPECT(worker.Value(a) == Filled(kCount, 1.0f));  // a gradient of zeros
}

void TestClosingEndsWaits() {
  const auto server = StartServer(SyncJob(2));
  Worker worker(0, 2);
  worker.Connect(*server);
  const int a = worker.Make<float>("a", {1});
  EXPECT_OK(worker.Pull({a}));
  EXPECT_OK(worker.Push<float>({{a, {2}}}));
  Ending held_back = worker.StartPull({a});
  Ending behind = worker.StartPull({a}, false);
  EXPECT(StillRuns(held_back, 0.05));
  worker.client().Close();
  EXPECT_STATUS(Wait(held_back), StatusCode::kCancelled);
  EXPECT_STATUS(Wait(behind), StatusCode::kCancelled);
}

void Main() {
  TestRefusals();
  TestUnreadableMemory();
  TestClosingEndsWaits();
  std::puts("ps_client_errors: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::ps_client_errors_test
