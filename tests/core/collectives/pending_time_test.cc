// The union of overlapping intervals, and a sum that never decreases while another thread reads it.
#include "core/collectives/pending_time.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "testing.h"

namespace tfdist::testing::pending_time_test {
namespace {

using std::chrono::seconds;

TEST_CASE("adds the union") {
  const auto at = [](int second) { return TimePoint() + seconds(second); };
  PendingTime time;
  CHECK(time.nanoseconds() == 0);
  time.Begin(at(10));
  time.Begin(at(12));
  time.End(at(15));
  time.End(at(20));
  CHECK(time.nanoseconds() == 10'000'000'000);
  // It began while the former one lasted, and counts from the end of that.
  time.Begin(at(18));
  time.End(at(23));
  CHECK(time.nanoseconds() == 13'000'000'000);
  // It ends before it begins, as another thread's clock has it.
  time.Begin(at(30));
  time.End(at(29));
  CHECK(time.nanoseconds() == 13'000'000'000);
}

// A pending wait counts up to now. A read time stays if the wait turns out to have ended before.
TEST_CASE("keeps what was read") {
  const TimePoint now = Clock::now();
  PendingTime time;
  time.Begin(now - seconds(2));
  const uint64_t sum = time.nanoseconds();
  CHECK((sum >= 2'000'000'000 && sum < 22'000'000'000));
  time.End(now - seconds(1));
  CHECK(time.nanoseconds() == sum);
}

TEST_CASE("never decreases") {
  PendingTime time;
  std::atomic<bool> over{false};
  std::thread writer([&] {
    while (!over) {
      time.Begin(Clock::now());
      time.End(Clock::now());
    }
  });
  uint64_t before = 0;
  for (int i = 0; i < 200'000 || before == 0; ++i) {
    const uint64_t now = time.nanoseconds();
    CHECK(now >= before);
    before = now;
  }
  over = true;
  writer.join();
}

}  // namespace
}  // namespace tfdist::testing::pending_time_test
