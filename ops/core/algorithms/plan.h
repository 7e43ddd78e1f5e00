// A plan: the sends and receives of one rank in a collective, computed before any data moves.
//
// Every algorithm is a function that returns a plan; core/collectives/plan_executor.h executes it.
// A plan reads like a program: a transfer uses the results of the transfers above it. So "receive,
// then send the same bytes" forwards data, chunk by chunk, without waiting for all of it.
//
// Both ends of a transfer give it the same number of bytes and the same step, and list their mutual
// transfers in the same order. Steps are numbered as in the papers: the transfers of one step may
// travel at the same time.
#ifndef TFDIST_OPS_CORE_ALGORITHMS_PLAN_H_
#define TFDIST_OPS_CORE_ALGORITHMS_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist {

// kInput is never written. kWork is temporary memory of `Plan::work_bytes`.
enum class Memory : uint8_t { kInput, kOutput, kWork };

struct Span {
  Memory memory = Memory::kOutput;
  size_t begin = 0;  // in bytes
};

// A combine receives a value and stores `own` op value at its destination.
enum class Operands : uint8_t { kOwnFirst, kReceivedFirst };
enum class Finish : uint8_t { kNo, kYes };  // kYes: the result is final, and a mean is divided

struct Transfer {
  enum class Kind : uint8_t { kSend, kReceive, kCombine };
  Kind kind;
  uint16_t step;
  int peer;
  size_t bytes;
  Span at;   // source of a send, destination of a receive or combine
  Span own;  // kCombine only
  Operands operands = Operands::kOwnFirst;
  Finish finish = Finish::kNo;
};

struct Plan {
  void Send(int step, int peer, Span from, size_t bytes);
  void Receive(int step, int peer, Span into, size_t bytes);
  void Combine(int step, int peer, Span own, Span into, size_t bytes, Finish finish = Finish::kNo,
               Operands operands = Operands::kOwnFirst);
  // Adds a peer with which this rank compares signatures, if it is not in the list yet.
  void AddPeer(int peer);

  // Each peer once, also without transfers: its signature is compared.
  std::vector<int> peers;
  std::vector<Transfer> transfers;  // none of them empty
  size_t work_bytes = 0;
  int steps = 0;  // of the whole algorithm, on all ranks

 private:
  void Add(Transfer transfer);
};

// Cuts `count` elements of `width` bytes into `parts` whose sizes differ by at most one element.
// Part i is [bounds[i], bounds[i + 1]), in bytes.
std::vector<size_t> EvenBounds(size_t count, size_t width, int parts);

// The bounds of parts of the given sizes.
std::vector<size_t> Bounds(const std::vector<uint64_t>& bytes);

// ceil(log2(n)) for n >= 1.
int CeilLog2(int n);

// The largest power of two that is at most n, for n >= 1.
int LargestPower(int n);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_PLAN_H_
