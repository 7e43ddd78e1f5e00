// Finds the fastest size of buckets while a job trains: tries each size in turn, in three rounds,
// and keeps the best.
//
//     steps      3          4        4             4        4
//     size     initial | size 0 | size 1 | ... | size 0 | size 1 | ...
//     counted  none      3 of 4   3 of 4         3 of 4   3 of 4
//
// The time of a step is the time between two calls of Begin. The median leaves out the pauses of
// evaluation and checkpoints, and rounds make a slow change of the machine's load hit all sizes
// equally. A rank cannot know how long another one takes, so the ranks must exchange their medians
// before they decide: the caller does that, and all decide by the same numbers.
//
// Horovod's autotuner (HOROVOD_AUTOTUNE) also times steps during the training.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_BUCKET_TUNER_H_
#define TFDIST_OPS_CORE_COLLECTIVES_BUCKET_TUNER_H_

#include <cstddef>
#include <vector>

#include "core/base/clock.h"

namespace tfdist {

class BucketTuner {
 public:
  // `initial` is the size of the first steps. It is kept unless another one is faster by more than
  // kGain.
  BucketTuner(int sizes, int initial);

  static constexpr int kWarmUpSteps = 3;
  static constexpr int kStepsOfTurn = 4;  // the first is not counted: it may wait for the last size
  static constexpr int kRounds = 3;
  static constexpr double kGain = 0.02;

  // A step begins. Returns whether all sizes have been tried, and nothing is decided yet.
  bool Begin(TimePoint now);

  // The size of this step.
  int size() const { return size_; }
  bool decided() const { return decided_; }

  // Median seconds of a step with each size, on this rank.
  std::vector<double> Medians() const;

  // Ends the search, by the times of the slowest rank with each size.
  void Decide(const std::vector<double>& seconds);

 private:
  const int initial_;
  std::vector<std::vector<double>> seconds_;  // of each size
  int begun_ = 0;                             // steps
  int size_;
  bool counts_ = false;  // the time of this step
  bool decided_ = false;
  TimePoint last_{};
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_BUCKET_TUNER_H_
