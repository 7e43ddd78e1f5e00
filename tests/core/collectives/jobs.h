// A collective as a value: a test describes it, starts it on each rank, and compares the result
// with a closed form. Parts are uneven and some are empty.
#ifndef TFDIST_TESTS_CORE_COLLECTIVES_JOBS_H_
#define TFDIST_TESTS_CORE_COLLECTIVES_JOBS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/calls.h"
#include "core/math/combine.h"
#include "values.h"

namespace tfdist::testing {

struct Method {
  CollectiveKind kind;
  Algorithm algorithm;
};

inline const std::vector<Method> kMethods = {
    {CollectiveKind::kAllReduce, Algorithm::kRing},
    {CollectiveKind::kAllReduce, Algorithm::kRecursiveDoubling},
    {CollectiveKind::kAllReduce, Algorithm::kTwoLevel},
    {CollectiveKind::kAllReduce, Algorithm::kHalvingDoubling},
    {CollectiveKind::kAllReduce, Algorithm::kDoubleTree},
    {CollectiveKind::kReduce, Algorithm::kTree},
    {CollectiveKind::kReduce, Algorithm::kChain},
    {CollectiveKind::kReduceScatter, Algorithm::kRing},
    {CollectiveKind::kReduceScatter, Algorithm::kDirect},
    {CollectiveKind::kBroadcast, Algorithm::kTree},
    {CollectiveKind::kBroadcast, Algorithm::kChain},
    {CollectiveKind::kAllGather, Algorithm::kRing},
    {CollectiveKind::kAllGather, Algorithm::kBruck},
    {CollectiveKind::kGather, Algorithm::kDirect},
    {CollectiveKind::kScatter, Algorithm::kDirect},
    {CollectiveKind::kAllToAll, Algorithm::kDirect},
    {CollectiveKind::kBarrier, Algorithm::kDissemination},
};

struct Job {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int size = 0;
  uint64_t key = 1;
  size_t count = 0;  // approximate number of elements
  Algorithm algorithm = Algorithm::kAuto;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  bool in_place = false;                            // all_reduce only
  bool even = false;                                // blocks of `count` elements each
  void (*prepare)(std::string* operand) = nullptr;  // called before the start, if it is set

  struct Running {
    std::string input, output;
    Ending ending;
  };

  // Elements of rank `r`'s block, and of the part that `from` sends to `to`.
  size_t Block(int r) const {
    if (even) return count;
    return (key + r) % 3 == 0 ? 0 : count / (1 + (key + r) % 4);
  }
  size_t Part(int from, int to) const { return Block(from + 3 * to); }
  size_t Blocks(int begin, int end) const {
    size_t sum = 0;
    for (int r = begin; r < end; ++r) sum += Block(r);
    return sum;
  }

  std::string Values(int from, int to, size_t elements) const {
    return Encoded(dtype, elements, [&](size_t i) {
      return static_cast<int>((i + key + 5 * static_cast<size_t>(from) + 3 * to) % 11);
    });
  }
  std::string Operands(int rank, size_t elements) const {
    return Encoded(dtype, elements,
                   [&](size_t i) { return Operand(dtype, op, size, rank, i, key); });
  }
  std::string Result(size_t begin, size_t elements) const {
    return Encoded(dtype, elements,
                   [&](size_t i) { return Reduced(dtype, op, size, begin + i, key); });
  }

  std::string Input(int rank) const {
    switch (kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduce:
        return Operands(rank, count);
      case CollectiveKind::kReduceScatter:
        return Operands(rank, Blocks(0, size));
      case CollectiveKind::kGather:
        return Values(rank, 0, Block(rank));
      case CollectiveKind::kScatter:
        return rank == root ? All([&](int r) { return Values(root, r, Block(r)); }) : "";
      case CollectiveKind::kAllToAll:
        return All([&](int r) { return Values(rank, r, Part(rank, r)); });
      default:
        return "";
    }
  }
  std::string Expected(int rank) const {
    switch (kind) {
      case CollectiveKind::kAllReduce:
        return Result(0, count);
      case CollectiveKind::kReduce:
        return rank == root ? Result(0, count) : "";
      case CollectiveKind::kReduceScatter:
        return Result(Blocks(0, rank), Block(rank));
      case CollectiveKind::kGather:
        return rank == root ? All([&](int r) { return Values(r, 0, Block(r)); }) : "";
      case CollectiveKind::kAllGather:
        return All([&](int r) { return Values(r, 0, Block(r)); });
      case CollectiveKind::kScatter:
        return Values(root, rank, Block(rank));
      case CollectiveKind::kAllToAll:
        return All([&](int r) { return Values(r, rank, Part(r, rank)); });
      case CollectiveKind::kBroadcast:
        return Values(root, 0, count);
      case CollectiveKind::kBarrier:
      case CollectiveKind::kJoin:
        break;
    }
    return "";
  }

  // The initial content of the output, with the rank's own block if that must be in place.
  std::string Before(int rank) const {
    std::string output(Expected(rank).size(), '\x55');
    const size_t width = ByteSize(dtype);
    if (kind == CollectiveKind::kBroadcast && rank == root) output = Values(root, 0, count);
    if (kind == CollectiveKind::kAllGather) {
      output.replace(Blocks(0, rank) * width, Block(rank) * width, Values(rank, 0, Block(rank)));
    }
    return output;
  }

  template <typename Piece>
  std::string All(const Piece& piece) const {
    std::string bytes;
    for (int r = 0; r < size; ++r) bytes += piece(r);
    return bytes;
  }

  // Two pieces, cut after `numerator` thirds of the elements.
  FlatView View(std::string* bytes, size_t numerator) const {
    const size_t cut = bytes->size() / ByteSize(dtype) * numerator / 3 * ByteSize(dtype);
    return FlatView({{bytes->data(), cut}, {bytes->data() + cut, bytes->size() - cut}});
  }

  template <typename Size>
  std::vector<size_t> Sizes(const Size& elements) const {
    std::vector<size_t> bytes;
    for (int r = 0; r < size; ++r) bytes.push_back(elements(r) * ByteSize(dtype));
    return bytes;
  }
  std::vector<size_t> BlockBytes() const {
    return Sizes([this](int r) { return Block(r); });
  }

  std::unique_ptr<Running> Start(Communicator& comm, double timeout = 20) const {
    const int rank = comm.rank();
    auto [options, ending] = Prepare(comm, {key, StrCat("job ", key), "", timeout, algorithm});
    auto running = std::make_unique<Running>();
    running->ending = std::move(ending);
    running->input = Input(rank);
    running->output = in_place ? running->input : Before(rank);
    if (prepare != nullptr) {
      prepare(&running->input);
      prepare(&running->output);
    }
    const FlatView out = View(&running->output, 1);
    const FlatView in = in_place ? out : View(&running->input, 2);
    switch (kind) {
      case CollectiveKind::kAllReduce:
        comm.AllReduce(std::move(options), in, out, dtype, op);
        break;
      case CollectiveKind::kReduce:
        comm.Reduce(std::move(options), in, out, dtype, op, root);
        break;
      case CollectiveKind::kReduceScatter:
        comm.ReduceScatter(std::move(options), in, out, dtype, op, BlockBytes());
        break;
      case CollectiveKind::kAllGather:
        comm.AllGather(std::move(options), dtype, BlockBytes(), out);
        break;
      case CollectiveKind::kGather:
        comm.Gather(std::move(options), dtype, BlockBytes(), root, in, out);
        break;
      case CollectiveKind::kScatter:
        comm.Scatter(std::move(options), dtype, BlockBytes(), root, in, out);
        break;
      case CollectiveKind::kAllToAll:
        comm.AllToAll(std::move(options), dtype, Sizes([&](int r) { return Part(rank, r); }),
                      Sizes([&](int r) { return Part(r, rank); }), in, out);
        break;
      case CollectiveKind::kBroadcast:
        comm.Broadcast(std::move(options), dtype, root, out);
        break;
      case CollectiveKind::kBarrier:
        comm.Barrier(std::move(options));
        break;
      case CollectiveKind::kJoin:  // has no operands: see join_test
        break;
    }
    return running;
  }

  void Check(Communicator& comm, Running& running) const {
    const Status status = Wait(running.ending);
    const bool exact = status.ok() && running.output == Expected(comm.rank());
    if (exact) return;
    std::fprintf(stderr, "rank %d of %d: kind %d by %s, dtype %d, %s, root %d, count %zu: %s\n",
                 comm.rank(), size, static_cast<int>(kind), Name(algorithm),
                 static_cast<int>(dtype), Name(op), root, count,
                 status.ok() ? "wrong values" : status.message().c_str());
    std::abort();
  }
};

// Runs the jobs on every rank, concurrently.
inline void RunJobs(Ranks& comms, const std::vector<Job>& jobs) {
  OnRanks(static_cast<int>(comms.size()), [&](int rank) {
    std::vector<std::unique_ptr<Job::Running>> running;
    for (const Job& job : jobs) running.push_back(job.Start(*comms[rank]));
    for (size_t i = 0; i < jobs.size(); ++i) jobs[i].Check(*comms[rank], *running[i]);
  });
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_COLLECTIVES_JOBS_H_
