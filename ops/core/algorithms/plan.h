// What one rank sends and receives in a collective, written down before anything moves.
//
// Every algorithm here is a function that returns such a plan; exchange.h carries it out. A plan
// reads like a program: a transfer uses what the transfers above it have put in place. So "receive,
// then send the same bytes" passes data on, and it does so chunk by chunk, without waiting for all
// of it.
//
// Both ends of a transfer give it the same number of bytes and the same step, and list what they
// exchange with each other in the same order. Steps count as in the papers: what is in one step may
// travel at the same time.
#ifndef TFDIST_OPS_CORE_ALGORITHMS_PLAN_H_
#define TFDIST_OPS_CORE_ALGORITHMS_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist {

// Never written: kInput. Starts empty: kWork, `Plan::work_bytes` of it.
enum class Memory : uint8_t { kInput, kOutput, kWork };

struct Span {
  Memory memory = Memory::kOutput;
  size_t begin = 0;  // in bytes
};

// A combine receives a value and puts `own` op that value into place.
enum class Operands : uint8_t { kOwnFirst, kReceivedFirst };
enum class Finish : uint8_t { kNo, kYes };  // kYes: a mean is divided here

struct Transfer {
  enum class Kind : uint8_t { kSend, kReceive, kCombine };
  Kind kind;
  uint16_t step;
  int peer;
  size_t bytes;
  Span at;   // where the bytes are, or go
  Span own;  // kCombine only
  Operands operands = Operands::kOwnFirst;
  Finish finish = Finish::kNo;
};

struct Plan {
  void Send(int step, int peer, Span from, size_t bytes);
  void Receive(int step, int peer, Span into, size_t bytes);
  void Combine(int step, int peer, Span own, Span into, size_t bytes, Finish finish = Finish::kNo,
               Operands operands = Operands::kOwnFirst);
  // Makes `peer` one with which the collective is checked, if it is not yet.
  void AddPeer(int peer);

  // Each once, also those to which there is nothing to send: the ranks check that they agree.
  std::vector<int> peers;
  std::vector<Transfer> transfers;  // none of them empty
  size_t work_bytes = 0;
  int steps = 0;  // of the whole algorithm, on all ranks

 private:
  void Add(Transfer transfer);
};

// Cuts `count` elements of `width` bytes into `parts` that differ by at most one element: part i is
// [bounds[i], bounds[i + 1]), in bytes.
std::vector<size_t> EvenBounds(size_t count, size_t width, int parts);

// The same for parts of given sizes.
std::vector<size_t> Bounds(const std::vector<uint64_t>& bytes);

// ceil(log2(n)) for n >= 1.
int CeilLog2(int n);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_PLAN_H_
