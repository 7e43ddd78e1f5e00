// Calls of collectives for tests: started in one line, and awaited with a deadline.
#ifndef TFDIST_TESTS_CORE_COLLECTIVES_CALLS_H_
#define TFDIST_TESTS_CORE_COLLECTIVES_CALLS_H_

#include <dirent.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing.h"

namespace tfdist::testing {

// The properties of a collective that a test chooses; the others follow from its values.
struct What {
  uint64_t key = 1;
  std::string name = "t";
  std::string shapes = "";
  double timeout = 20;
  Algorithm algorithm = Algorithm::kAuto;
};

using Ending = std::future<Status>;

inline std::pair<CollectiveOptions, Ending> Prepare(Communicator& comm, const What& what) {
  auto promise = std::make_shared<std::promise<Status>>();
  CollectiveOptions options;
  options.id = {what.key, comm.NextSequence(what.key)};
  options.signature.name = what.name;
  options.signature.shapes = what.shapes;
  options.signature.shape_hash = std::hash<std::string>()(what.shapes);
  options.timeout_seconds = what.timeout;
  options.algorithm = what.algorithm;
  // A second call throws and ends the test.
  options.done = [promise](const Status& status) { promise->set_value(status); };
  return {std::move(options), promise->get_future()};
}

template <typename T>
FlatView View(std::vector<T>& values) {
  return FlatView({{values.data(), values.size() * sizeof(T)}});
}

// In place.
template <typename T>
Ending AllReduce(Communicator& comm, std::vector<T>& values, const What& what = {},
                 DType dtype = DType::kFloat32, ReduceOp op = ReduceOp::kSum) {
  auto [options, ending] = Prepare(comm, what);
  comm.AllReduce(std::move(options), View(values), View(values), dtype, op);
  return std::move(ending);
}

template <typename T>
Ending Broadcast(Communicator& comm, std::vector<T>& values, int root, const What& what = {},
                 DType dtype = DType::kFloat32) {
  auto [options, ending] = Prepare(comm, what);
  comm.Broadcast(std::move(options), dtype, root, View(values));
  return std::move(ending);
}

// `values` of rank `root` has a block for each rank; on another rank it is that rank's block. The
// root needs no data of the others and, with few values, may end before they start.
template <typename T>
Ending Scatter(Communicator& comm, std::vector<T>& values, int root, const What& what = {},
               DType dtype = DType::kFloat32) {
  auto [options, ending] = Prepare(comm, what);
  const bool here = comm.rank() == root;
  const size_t count = here ? values.size() / comm.size() : values.size(), width = sizeof(T);
  comm.Scatter(std::move(options), dtype, std::vector<size_t>(comm.size(), count * width), root,
               here ? View(values) : FlatView(), FlatView({{values.data(), count * width}}));
  return std::move(ending);
}

// All blocks have the same size; this rank's is in place.
template <typename T>
Ending AllGather(Communicator& comm, std::vector<T>& values, const What& what = {},
                 DType dtype = DType::kFloat32) {
  auto [options, ending] = Prepare(comm, what);
  const std::vector<size_t> blocks(comm.size(), values.size() * sizeof(T) / comm.size());
  comm.AllGather(std::move(options), dtype, blocks, View(values));
  return std::move(ending);
}

inline Status Wait(Ending& ending, double seconds = 30) {
  REQUIRE(ending.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready);
  return ending.get();
}

inline bool StillRuns(Ending& ending, double seconds) {
  return ending.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::timeout;
}

// A rank's name in messages, up to its address.
inline std::string Rank(int rank) { return StrCat("rank ", rank, " ("); }

using Ranks = std::vector<std::unique_ptr<Communicator>>;

// Starts one all-reduce of `values` on every rank but `absent`.
inline std::vector<Ending> ReduceWithout(Ranks& comms, int absent,
                                         std::vector<std::vector<float>>* values,
                                         const What& what = {}) {
  values->assign(comms.size(), std::vector<float>(100000, 1));
  std::vector<Ending> endings(comms.size());
  for (int rank = 0; rank < static_cast<int>(comms.size()); ++rank) {
    if (rank != absent) endings[rank] = AllReduce(*comms[rank], (*values)[rank], what);
  }
  return endings;
}

inline double SecondsSince(TimePoint start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of this process's memory.
inline int64_t ResidentBytes() {
  long pages = 0, resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  REQUIRE((file != nullptr && std::fscanf(file, "%ld %ld", &pages, &resident) == 2));
  std::fclose(file);
  return int64_t{resident} * sysconf(_SC_PAGESIZE);
}

// Whether it has grown by less than that; under a sanitizer, which keeps memory of its own, always.
inline bool HasGrownLessThan(int64_t megabytes, int64_t since) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return megabytes + since > 0;
#else
  return ResidentBytes() - since < megabytes << 20;
#endif
}

inline int OpenDescriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  REQUIRE(directory != nullptr);
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// Polls `condition`, which another thread changes without a notification.
inline bool Eventually(const std::function<bool()>& condition, double seconds = 20) {
  const TimePoint start = Clock::now();
  while (!condition()) {
    if (SecondsSince(start) > seconds) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_COLLECTIVES_CALLS_H_
