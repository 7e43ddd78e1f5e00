#include "core/collectives/bucket_tuner.h"

#include <algorithm>
#include <chrono>

namespace tfdist {

BucketTuner::BucketTuner(int sizes, int initial)
    : initial_(initial), seconds_(sizes), size_(initial), decided_(sizes == 1) {}

bool BucketTuner::Begin(TimePoint now) {
  if (decided_) return false;
  if (counts_) {
    seconds_[size_].push_back(std::chrono::duration<double>(now - last_).count());
  }
  last_ = now;
  const int sizes = static_cast<int>(seconds_.size());
  const int step = begun_++ - kWarmUpSteps;
  counts_ = false;
  if (step < 0) return false;
  if (step >= kRounds * sizes * kStepsOfTurn) {
    size_ = initial_;
    return true;
  }
  size_ = step / kStepsOfTurn % sizes;
  counts_ = step % kStepsOfTurn > 0;
  return false;
}

std::vector<double> BucketTuner::Medians() const {
  std::vector<double> medians;
  for (std::vector<double> times : seconds_) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    medians.push_back(*middle);
  }
  return medians;
}

void BucketTuner::Decide(const std::vector<double>& seconds) {
  const auto best = std::min_element(seconds.begin(), seconds.end());
  const bool gains = *best < (1 - kGain) * seconds[initial_];
  size_ = gains ? static_cast<int>(best - seconds.begin()) : initial_;
  decided_ = true;
  seconds_.clear();
}

}  // namespace tfdist
