#include "core/collectives/plan_executor.h"

#include <algorithm>
#include <utility>

#include "core/math/combine.h"

namespace tfdist {
namespace {

bool Overlap(const Span& a, size_t a_bytes, const Span& b, size_t b_bytes) {
  return a.memory == b.memory && a.begin < b.begin + b_bytes && b.begin < a.begin + a_bytes;
}

const Span& Operand(const Transfer& transfer) {
  return transfer.kind == Transfer::Kind::kCombine ? transfer.own : transfer.at;
}

}  // namespace

PlanExecutor::PlanExecutor(CollectiveOptions options, Plan plan, Data data)
    : Collective(std::move(options)),
      peers_(std::move(plan.peers)),
      data_(std::move(data)),
      work_memory_(plan.work_bytes > 0 ? new char[plan.work_bytes] : nullptr),
      work_({{work_memory_.get(), plan.work_bytes}}),
      unfinished_(plan.transfers.size()) {
  for (const int peer : peers_) queues_.push_back({peer, false, {}, {}});
  transfers_.resize(plan.transfers.size());
  for (size_t i = 0; i < transfers_.size(); ++i) {
    transfers_[i].transfer = plan.transfers[i];
    const bool sends = plan.transfers[i].kind == Transfer::Kind::kSend;
    PeerQueue* const queue = FindQueue(plan.transfers[i].peer);
    (sends ? queue->sends : queue->receives).push_back(static_cast<int>(i));
    FindNeeds(static_cast<int>(i));
  }
  for (PeerQueue& queue : queues_) {
    size_t bytes = 0;
    for (const int i : queue.sends) bytes += transfers_[i].transfer.bytes;
    queue.may_send = bytes <= kEagerBytes;
  }
}

void PlanExecutor::FindNeeds(int index) {
  const Transfer& transfer = transfers_[index].transfer;
  const Span& operand = Operand(transfer);
  if (transfer.kind == Transfer::Kind::kReceive || operand.memory == Memory::kInput) return;
  for (int i = 0; i < index; ++i) {
    const Transfer& earlier = transfers_[i].transfer;
    if (earlier.kind == Transfer::Kind::kSend) continue;
    if (Overlap(operand, transfer.bytes, earlier.at, earlier.bytes)) {
      transfers_[index].needs.push_back(i);
    }
  }
}

const FlatView& PlanExecutor::View(Memory memory) const {
  switch (memory) {
    case Memory::kInput:
      return data_.input;
    case Memory::kOutput:
      return data_.output;
    case Memory::kWork:
      break;
  }
  return work_;
}

PlanExecutor::PeerQueue* PlanExecutor::FindQueue(int peer) {
  for (PeerQueue& queue : queues_) {
    if (queue.peer == peer) return &queue;
  }
  return nullptr;
}

void PlanExecutor::Start(ChunkSender& sender) { Advance(sender); }

void PlanExecutor::PeerOpened(ChunkSender& sender, int peer) {
  PeerQueue* const queue = FindQueue(peer);
  if (queue == nullptr || queue->may_send) return;
  queue->may_send = true;
  SendReady(sender, queue);
}

Status PlanExecutor::Place(int peer, const FrameHeader& chunk, char* scratch,
                           std::vector<iovec>* target) {
  PeerQueue* const queue = FindQueue(peer);
  if (queue == nullptr || queue->next_receive == queue->receives.size()) {
    return Status(StatusCode::kInternal,
                  StrCat(Title(), ": a chunk that it does not expect came from rank ", peer));
  }
  TransferState& state = transfers_[queue->receives[queue->next_receive]];
  const Transfer& transfer = state.transfer;
  const size_t begin = state.arrived, end = std::min(begin + kChunkBytes, transfer.bytes);
  if (chunk.step != transfer.step || chunk.offset != begin || chunk.payload_bytes != end - begin) {
    return Status(StatusCode::kInternal,
                  StrCat(Title(), ": expected step ", transfer.step, " offset ", begin, " length ",
                         end - begin, ", received step ", chunk.step, " offset ", chunk.offset,
                         " length ", chunk.payload_bytes, " from rank ", peer));
  }
  if (transfer.kind == Transfer::Kind::kReceive) {
    View(transfer.at.memory).Slice(transfer.at.begin + begin, transfer.at.begin + end, target);
  } else if (state.done == begin && Ready(state, begin, end)) {
    target->push_back({scratch, end - begin});
  } else {
    state.early.emplace_back(new char[end - begin]);
    ++early_;
    target->push_back({state.early.back().get(), end - begin});
  }
  return Status();
}

void PlanExecutor::Received(ChunkSender& sender, int peer, const FrameHeader& chunk,
                            const char* scratch) {
  PeerQueue* const queue = FindQueue(peer);
  TransferState& state = transfers_[queue->receives[queue->next_receive]];
  const size_t begin = state.arrived, end = begin + chunk.payload_bytes;
  state.arrived = end;
  if (end == state.transfer.bytes) ++queue->next_receive;
  if (state.early.empty()) {
    if (state.transfer.kind == Transfer::Kind::kCombine) Apply(state, begin, end, scratch);
    MarkDone(&state, end);
  }
  Advance(sender);
}

bool PlanExecutor::Ready(const TransferState& state, size_t begin, size_t end) const {
  const size_t from = Operand(state.transfer).begin + begin, to = from + (end - begin);
  return std::all_of(state.needs.begin(), state.needs.end(), [&](int need) {
    const TransferState& earlier = transfers_[need];
    const size_t at = earlier.transfer.at.begin;
    const size_t last = std::min(to, at + earlier.transfer.bytes);
    return std::max(from, at) >= last || at + earlier.done >= last;
  });
}

void PlanExecutor::Apply(const TransferState& state, size_t begin, size_t end,
                         const char* received) {
  const Transfer& transfer = state.transfer;
  std::vector<iovec> own, out;
  View(transfer.own.memory).Slice(transfer.own.begin + begin, transfer.own.begin + end, &own);
  View(transfer.at.memory).Slice(transfer.at.begin + begin, transfer.at.begin + end, &out);
  const bool divided =
      transfer.finish == Finish::kYes && data_.reduce_op == ReduceOp::kMean && data_.divisor > 1;
  // The pieces of the two views need not end at the same bytes.
  for (size_t i = 0, j = 0; i < own.size() && j < out.size();) {
    const size_t bytes = std::min(own[i].iov_len, out[j].iov_len);
    const size_t count = bytes / ByteSize(data_.dtype);
    const void* const mine = own[i].iov_base;
    const bool first = transfer.operands == Operands::kOwnFirst;
    Combine(data_.dtype, data_.reduce_op, out[j].iov_base, first ? mine : received,
            first ? received : mine, count);
    if (divided) Divide(data_.dtype, out[j].iov_base, count, data_.divisor);
    received += bytes;
    for (auto [piece, index] : {std::pair(&own[i], &i), std::pair(&out[j], &j)}) {
      piece->iov_base = static_cast<char*>(piece->iov_base) + bytes;
      piece->iov_len -= bytes;
      if (piece->iov_len == 0) ++*index;
    }
  }
}

void PlanExecutor::MarkDone(TransferState* state, size_t end) {
  state->done = end;
  if (end == state->transfer.bytes) --unfinished_;
}

// Combines the chunks that came early, as far as their operands are ready now.
void PlanExecutor::CatchUp(TransferState* state) {
  while (state->done < state->arrived && !state->early.empty()) {
    const size_t begin = state->done, end = std::min(begin + kChunkBytes, state->transfer.bytes);
    if (!Ready(*state, begin, end)) return;
    Apply(*state, begin, end, state->early.front().get());
    state->early.pop_front();
    --early_;
    MarkDone(state, end);
  }
}

void PlanExecutor::SendReady(ChunkSender& sender, PeerQueue* queue) {
  while (queue->may_send && queue->next_send < queue->sends.size()) {
    TransferState& state = transfers_[queue->sends[queue->next_send]];
    const Transfer& transfer = state.transfer;
    const size_t begin = state.done, end = std::min(begin + kChunkBytes, transfer.bytes);
    if (!Ready(state, begin, end)) return;
    std::vector<iovec> pieces;
    View(transfer.at.memory).Slice(transfer.at.begin + begin, transfer.at.begin + end, &pieces);
    sender.SendChunk(this, queue->peer, transfer.step, begin, std::move(pieces));
    MarkDone(&state, end);
    if (end == transfer.bytes) ++queue->next_send;
  }
}

void PlanExecutor::Advance(ChunkSender& sender) {
  // In order of the plan: a transfer that catches up may complete the data that a later one waits
  // for.
  for (size_t i = 0; early_ > 0 && i < transfers_.size(); ++i) CatchUp(&transfers_[i]);
  for (PeerQueue& queue : queues_) SendReady(sender, &queue);
}

int PlanExecutor::WaitingFor() const {
  for (const TransferState& state : transfers_) {
    if (state.done < state.transfer.bytes) return state.transfer.peer;
  }
  // Everything has been handed to the sender, and a peer has not accepted it yet.
  return peers_.empty() ? -1 : peers_.back();
}

}  // namespace tfdist
