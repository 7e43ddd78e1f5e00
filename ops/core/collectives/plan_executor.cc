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

Exchange::Exchange(CollectiveOptions options, Plan plan, Data data)
    : Collective(std::move(options)),
      peers_(std::move(plan.peers)),
      data_(std::move(data)),
      work_memory_(plan.work_bytes > 0 ? new char[plan.work_bytes] : nullptr),
      work_({{work_memory_.get(), plan.work_bytes}}),
      unfinished_(plan.transfers.size()) {
  for (const int peer : peers_) lines_.push_back({peer, false, {}, {}});
  tasks_.resize(plan.transfers.size());
  for (size_t i = 0; i < tasks_.size(); ++i) {
    tasks_[i].transfer = plan.transfers[i];
    const bool sends = plan.transfers[i].kind == Transfer::Kind::kSend;
    Line* const line = FindLine(plan.transfers[i].peer);
    (sends ? line->sends : line->receives).push_back(static_cast<int>(i));
    FindNeeds(static_cast<int>(i));
  }
  for (Line& line : lines_) {
    size_t bytes = 0;
    for (const int i : line.sends) bytes += tasks_[i].transfer.bytes;
    line.may_send = bytes <= kEagerBytes;
  }
}

void Exchange::FindNeeds(int task) {
  const Transfer& transfer = tasks_[task].transfer;
  const Span& operand = Operand(transfer);
  if (transfer.kind == Transfer::Kind::kReceive || operand.memory == Memory::kInput) return;
  for (int i = 0; i < task; ++i) {
    const Transfer& earlier = tasks_[i].transfer;
    if (earlier.kind == Transfer::Kind::kSend) continue;
    if (Overlap(operand, transfer.bytes, earlier.at, earlier.bytes)) {
      tasks_[task].needs.push_back(i);
    }
  }
}

const FlatView& Exchange::View(Memory memory) const {
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

Exchange::Line* Exchange::FindLine(int peer) {
  for (Line& line : lines_) {
    if (line.peer == peer) return &line;
  }
  return nullptr;
}

void Exchange::Start(ChunkSender& sender) { GoOn(sender); }

void Exchange::PeerOpened(ChunkSender& sender, int peer) {
  Line* const line = FindLine(peer);
  if (line == nullptr || line->may_send) return;
  line->may_send = true;
  Feed(sender, line);
}

Status Exchange::Place(int peer, const FrameHeader& chunk, char* scratch,
                       std::vector<iovec>* target) {
  Line* const line = FindLine(peer);
  if (line == nullptr || line->next_receive == line->receives.size()) {
    return Status(StatusCode::kInternal,
                  StrCat(Title(), ": a chunk that it does not expect came from rank ", peer));
  }
  Task& task = tasks_[line->receives[line->next_receive]];
  const Transfer& transfer = task.transfer;
  const size_t begin = task.arrived, end = std::min(begin + kChunkBytes, transfer.bytes);
  if (chunk.step != transfer.step || chunk.offset != begin || chunk.payload_bytes != end - begin) {
    return Status(StatusCode::kInternal,
                  StrCat(Title(), ": expected step ", transfer.step, " offset ", begin, " length ",
                         end - begin, ", received step ", chunk.step, " offset ", chunk.offset,
                         " length ", chunk.payload_bytes, " from rank ", peer));
  }
  if (transfer.kind == Transfer::Kind::kReceive) {
    View(transfer.at.memory).Slice(transfer.at.begin + begin, transfer.at.begin + end, target);
  } else if (task.done == begin && Ready(task, begin, end)) {
    target->push_back({scratch, end - begin});
  } else {
    task.aside.emplace_back(new char[end - begin]);
    ++aside_;
    target->push_back({task.aside.back().get(), end - begin});
  }
  return Status();
}

void Exchange::Received(ChunkSender& sender, int peer, const FrameHeader& chunk,
                        const char* scratch) {
  Line* const line = FindLine(peer);
  Task& task = tasks_[line->receives[line->next_receive]];
  const size_t begin = task.arrived, end = begin + chunk.payload_bytes;
  task.arrived = end;
  if (end == task.transfer.bytes) ++line->next_receive;
  if (task.aside.empty()) {
    if (task.transfer.kind == Transfer::Kind::kCombine) Apply(task, begin, end, scratch);
    Advance(&task, end);
  }
  GoOn(sender);
}

bool Exchange::Ready(const Task& task, size_t begin, size_t end) const {
  const size_t from = Operand(task.transfer).begin + begin, to = from + (end - begin);
  return std::all_of(task.needs.begin(), task.needs.end(), [&](int need) {
    const Task& earlier = tasks_[need];
    const size_t at = earlier.transfer.at.begin;
    const size_t last = std::min(to, at + earlier.transfer.bytes);
    return std::max(from, at) >= last || at + earlier.done >= last;
  });
}

void Exchange::Apply(const Task& task, size_t begin, size_t end, const char* received) {
  const Transfer& transfer = task.transfer;
  std::vector<iovec> own, out;
  View(transfer.own.memory).Slice(transfer.own.begin + begin, transfer.own.begin + end, &own);
  View(transfer.at.memory).Slice(transfer.at.begin + begin, transfer.at.begin + end, &out);
  const bool divided =
      transfer.finish == Finish::kYes && data_.reduce_op == ReduceOp::kMean && data_.divisor > 1;
  // The pieces of both need not end at the same bytes.
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

void Exchange::Advance(Task* task, size_t end) {
  task->done = end;
  if (end == task->transfer.bytes) --unfinished_;
}

// Combines what was kept aside and has arrived, as far as its operands are there now.
void Exchange::CatchUp(Task* task) {
  while (task->done < task->arrived && !task->aside.empty()) {
    const size_t begin = task->done, end = std::min(begin + kChunkBytes, task->transfer.bytes);
    if (!Ready(*task, begin, end)) return;
    Apply(*task, begin, end, task->aside.front().get());
    task->aside.pop_front();
    --aside_;
    Advance(task, end);
  }
}

void Exchange::Feed(ChunkSender& sender, Line* line) {
  while (line->may_send && line->next_send < line->sends.size()) {
    Task& task = tasks_[line->sends[line->next_send]];
    const Transfer& transfer = task.transfer;
    const size_t begin = task.done, end = std::min(begin + kChunkBytes, transfer.bytes);
    if (!Ready(task, begin, end)) return;
    std::vector<iovec> pieces;
    View(transfer.at.memory).Slice(transfer.at.begin + begin, transfer.at.begin + end, &pieces);
    sender.SendChunk(this, line->peer, transfer.step, begin, std::move(pieces));
    Advance(&task, end);
    if (end == transfer.bytes) ++line->next_send;
  }
}

void Exchange::GoOn(ChunkSender& sender) {
  // What one task catches up on may be what another has waited for; later ones wait for earlier
  // ones.
  for (size_t i = 0; aside_ > 0 && i < tasks_.size(); ++i) CatchUp(&tasks_[i]);
  for (Line& line : lines_) Feed(sender, &line);
}

int Exchange::WaitingFor() const {
  for (const Task& task : tasks_) {
    if (task.done < task.transfer.bytes) return task.transfer.peer;
  }
  // All is on its way to a peer that does not take it yet.
  return peers_.empty() ? -1 : peers_.back();
}

}  // namespace tfdist
