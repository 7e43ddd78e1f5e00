// The search for the fastest size of buckets, with a clock of its own.
#include "core/collectives/bucket_tuner.h"

#include <chrono>
#include <cmath>

#include "testing.h"

namespace tfdist::testing::bucket_tuner_test {
namespace {

constexpr int kSteps = BucketTuner::kStepsOfTurn, kRounds = BucketTuner::kRounds;

// Runs steps that take `seconds[size]`, with a pause of a minute in some; returns the sizes used
// until all have been tried.
std::vector<int> Search(BucketTuner* tuner, const std::vector<double>& seconds) {
  TimePoint now{};
  std::vector<int> used;
  while (!tuner->Begin(now)) {
    CHECK(used.size() < 1000);
    used.push_back(tuner->size());
    double step = seconds[tuner->size()];
    if (used.size() % 11 == 5) step += 60;
    now += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(step));
  }
  return used;
}

TEST_CASE("tries each size in turns") {
  BucketTuner tuner(3, 1);
  const std::vector<int> used = Search(&tuner, {0.3, 0.2, 0.1});
  std::vector<int> expected(BucketTuner::kWarmUpSteps, 1);
  for (int i = 0; i < kRounds * 3 * kSteps; ++i) expected.push_back(i / kSteps % 3);
  CHECK(used == expected);
  // Until the ranks have agreed it uses the first size.
  CHECK((!tuner.decided() && tuner.size() == 1));
  const std::vector<double> medians = tuner.Medians();
  CHECK(medians.size() == 3);
  for (int i = 0; i < 3; ++i) CHECK(std::abs(medians[i] - (0.3 - 0.1 * i)) < 1e-6);
  tuner.Decide(medians);
  CHECK((tuner.decided() && tuner.size() == 2));
  CHECK((!tuner.Begin(TimePoint{}) && tuner.size() == 2));
}

TEST_CASE("a small gain is none") {
  BucketTuner kept(2, 0), changed(2, 0);
  kept.Decide({1.0, 0.985});
  CHECK(kept.size() == 0);
  changed.Decide({1.0, 0.975});
  CHECK(changed.size() == 1);
}

TEST_CASE("a single size is decided") {
  BucketTuner tuner(1, 0);
  CHECK((tuner.decided() && !tuner.Begin(TimePoint{}) && tuner.size() == 0));
}

}  // namespace
}  // namespace tfdist::testing::bucket_tuner_test
