// The time of an all-reduce by each algorithm, for the limits in ops/core/collectives/selector.cc.
//
//     make -C ops algorithms && ops/build/algorithms [RANKS...]
//
// All ranks are threads of this process. Algorithms are timed in turn, round by round; the table
// has the median over the rounds, in milliseconds, and the fastest one.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/communicator.h"

namespace tfdist {
namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kRecursiveDoubling,
                                     Algorithm::kHalvingDoubling, Algorithm::kDoubleTree};
constexpr size_t kKilobytes[] = {4, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384};
constexpr int kRounds = 15;
constexpr size_t kMostBytes = size_t{1} << 30;  // of all ranks together

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

void Check(const Status& status) {
  if (!status.ok()) Fail(status.message());
}

using Ranks = std::vector<std::unique_ptr<Communicator>>;

Ranks Connected(int size) {
  Ranks ranks(size);
  std::vector<std::string> addresses;
  for (int rank = 0; rank < size; ++rank) {
    Check(Communicator::Create(rank, size, "127.0.0.1", 0, &ranks[rank], true));
    addresses.push_back("127.0.0.1:" + std::to_string(ranks[rank]->port()));
  }
  std::vector<std::future<Status>> connected;
  for (const auto& rank : ranks) {
    connected.push_back(std::async(std::launch::async, [&rank, &addresses] {
      return rank->Connect(Key{}, 1, addresses, 60);
    }));
  }
  for (auto& one : connected) Check(one.get());
  return ranks;
}

// The milliseconds of one all-reduce.
double Reduce(Ranks& ranks, std::vector<std::vector<float>>* values, Algorithm algorithm) {
  for (auto& of_rank : *values) std::fill(of_rank.begin(), of_rank.end(), 1.0f);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::future<Status>> endings;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    auto promise = std::make_shared<std::promise<Status>>();
    CollectiveOptions options;
    options.id = {1, ranks[rank]->NextSequence(1)};
    options.timeout_seconds = 60;
    options.algorithm = algorithm;
    options.done = [promise](const Status& status) { promise->set_value(status); };
    endings.push_back(promise->get_future());
    std::vector<float>& own = (*values)[rank];
    const FlatView view({{own.data(), own.size() * sizeof(float)}});
    ranks[rank]->AllReduce(std::move(options), view, view, DType::kFloat32, ReduceOp::kSum);
  }
  for (auto& ending : endings) Check(ending.get());
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  for (const auto& of_rank : *values) {
    for (const float value : {of_rank.front(), of_rank.back()}) {
      if (value != static_cast<float>(ranks.size())) Fail("a wrong sum");
    }
  }
  return took.count();
}

void Measure(int size) {
  Ranks ranks = Connected(size);
  std::printf("\n%d ranks %28s %18s %20s %12s\n", size, "ring", "recursive doubling",
              "halving and doubling", "double tree");
  for (const size_t kilobytes : kKilobytes) {
    if (kilobytes * 1024 * size > kMostBytes) break;
    std::vector<std::vector<float>> values(size, std::vector<float>(kilobytes * 256));
    std::vector<std::vector<double>> times(std::size(kAlgorithms));
    for (int round = 0; round <= kRounds; ++round) {
      for (size_t i = 0; i < std::size(kAlgorithms); ++i) {
        const double time = Reduce(ranks, &values, kAlgorithms[i]);
        if (round > 0) times[i].push_back(time);
      }
    }
    std::vector<double> medians;
    for (auto& of_one : times) {
      std::nth_element(of_one.begin(), of_one.begin() + of_one.size() / 2, of_one.end());
      medians.push_back(of_one[of_one.size() / 2]);
    }
    const size_t best = std::min_element(medians.begin(), medians.end()) - medians.begin();
    std::printf("%8zu KB %26.3f %18.3f %20.3f %12.3f   %s\n", kilobytes, medians[0], medians[1],
                medians[2], medians[3], Name(kAlgorithms[best]));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace tfdist

int main(int argc, char** argv) {
  std::vector<int> sizes = {2, 3, 4, 8, 16, 32, 64, 128};
  if (argc > 1) sizes.clear();
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  for (const int size : sizes) tfdist::Measure(size);
}
