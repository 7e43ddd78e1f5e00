// Every collective by each of its algorithms, over numbers of ranks, sizes, element types and
// operations.
#include <cstring>
#include <limits>

#include "collectives/jobs.h"
#include "core/math/combine.h"

namespace tfdist::testing::every_collective_test {
namespace {

const ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax,
                         ReduceOp::kProduct};

// Sizes up to several chunks; types, operations and roots alternate.
void TestSizes(int size) {
  Ranks comms = ConnectedOn(size, 3);
  std::vector<Job> jobs;
  for (const size_t count :
       {size_t{0}, size_t{1}, size_t{3}, size_t{77}, size_t{4097}, size_t{100005}}) {
    for (const Method& method : kMethods) {
      Job job;
      job.kind = method.kind;
      job.algorithm = method.algorithm;
      job.size = size;
      job.key = jobs.size();
      job.count = count;
      job.dtype = kReducible[(jobs.size() * 7 + count) % kReducible.size()];
      job.op = kOps[jobs.size() % 5];
      if (!CanReduce(job.dtype, job.op)) job.op = ReduceOp::kSum;
      job.root = static_cast<int>(jobs.size() % size);
      job.in_place = method.kind == CollectiveKind::kAllReduce && jobs.size() % 2 == 0;
      jobs.push_back(job);
    }
  }
  RunJobs(comms, jobs);
}

// On both sides of every size at which the selected algorithm changes.
void TestBorders(int size) {
  Ranks comms = ConnectedOn(size, 2);
  std::vector<Job> jobs;
  for (const size_t bytes : {4, 8, 16, 32, 64, 128, 256}) {
    for (const size_t count : {bytes * 256, bytes * 256 + 1}) {
      for (const Method& method : kMethods) {
        Job job;
        job.kind = method.kind;
        job.size = size;
        job.key = jobs.size();
        job.count = count;
        job.root = size - 1;
        jobs.push_back(job);
      }
    }
  }
  RunJobs(comms, jobs);
}

void TestTypesAndOperations(int size) {
  Ranks comms = ConnectedOn(size, 2);
  std::vector<Job> jobs;
  for (const Method& method : kMethods) {
    if (!Reduces(method.kind)) continue;
    for (const DType dtype : kReducible) {
      for (const ReduceOp op : kOps) {
        if (!CanReduce(dtype, op)) continue;
        Job job;
        job.kind = method.kind;
        job.algorithm = method.algorithm;
        job.size = size;
        job.key = jobs.size();
        job.count = 123;
        job.dtype = dtype;
        job.op = op;
        jobs.push_back(job);
      }
    }
  }
  RunJobs(comms, jobs);
}

// A barrier waits for the last rank.
void TestBarrier(int size) {
  Ranks comms = Connected(size);
  Job job;
  job.kind = CollectiveKind::kBarrier;
  job.size = size;
  for (int late = 0; late < size; ++late) {
    std::vector<std::unique_ptr<Job::Running>> running(size);
    for (int rank = 0; rank < size; ++rank) {
      if (rank != late) running[rank] = job.Start(*comms[rank]);
    }
    for (int rank = 0; rank < size; ++rank) {
      if (rank != late) CHECK(StillRuns(running[rank]->ending, 0.002));
    }
    running[late] = job.Start(*comms[late]);
    for (int rank = 0; rank < size; ++rank) job.Check(*comms[rank], *running[rank]);
  }
}

// Sums whose rounding depends on the order: all ranks have the same bits nevertheless.
void TestSameBits(int size) {
  Ranks comms = ConnectedOn(size, 3);
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kRecursiveDoubling, Algorithm::kTwoLevel,
        Algorithm::kHalvingDoubling, Algorithm::kDoubleTree}) {
    std::vector<std::vector<float>> values(size, std::vector<float>(1000));
    std::vector<Ending> endings;
    for (int rank = 0; rank < size; ++rank) {
      for (size_t i = 0; i < 1000; ++i) {
        values[rank][i] = 1.0f / static_cast<float>(1 + (i * 37 + rank * 101) % 997);
      }
      values[rank][500] = std::numeric_limits<float>::quiet_NaN();
      endings.push_back(AllReduce(*comms[rank], values[rank], {9, "bits", "", 20, algorithm}));
    }
    for (Ending& ending : endings) CHECK_OK(Wait(ending));
    for (const std::vector<float>& other : values) {
      CHECK(std::memcmp(other.data(), values[0].data(), 4000) == 0);
      CHECK((other[500] != other[500] && other[499] == other[499]));
    }
  }
}

TEST_CASE("nan") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling,
                                    Algorithm::kHalvingDoubling, Algorithm::kDoubleTree}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      Ranks comms = Connected(3);
      std::vector<std::vector<float>> values = {{nan, 1, 1, 2}, {1, nan, 1, 3}, {1, 1, nan, 4}};
      std::vector<Ending> endings;
      for (int rank = 0; rank < 3; ++rank) {
        endings.push_back(AllReduce(*comms[rank], values[rank], {9, "nan", "", 20, algorithm},
                                    DType::kFloat32, op));
      }
      for (Ending& ending : endings) CHECK_OK(Wait(ending));
      for (const std::vector<float>& result : values) {
        for (size_t i = 0; i < 3; ++i) CHECK(result[i] != result[i]);
        CHECK(result[3] == (op == ReduceOp::kMin ? 2 : 4));
      }
    }
  }
}

using Sizes = std::vector<int>;

TEST_CASE("sizes") {
  for (const int size : share > 1 ? Sizes{3, 8} : Sizes{1, 2, 3, 4, 5, 7, 8}) TestSizes(size);
}

TEST_CASE("borders") {
  for (const int size : share > 1 ? Sizes{2} : Sizes{2, 4}) TestBorders(size);
}

TEST_CASE("types and operations") {
  for (const int size : {2, 3, 8}) TestTypesAndOperations(size);
}

TEST_CASE("barrier") {
  for (const int size : {2, 3, 5}) TestBarrier(size);
}

TEST_CASE("same bits") {
  for (const int size : {2, 3, 6, 8}) TestSameBits(size);
}

}  // namespace
}  // namespace tfdist::testing::every_collective_test
