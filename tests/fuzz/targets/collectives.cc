// The collectives of one rank, whose peers send any frames.
//
// The table of collectives with its plans, its streams and their parser are the engine's own; only
// its threads are left out, so that an input always takes the same way. Input: the rank and number
// of ranks, then steps: this rank starts a collective or joins, a peer opens one, sends chunks,
// asks, answers, leaves or sends any bytes. A peer that breaks the rules costs the communicator,
// and no more; each collective ends, once.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/collective_table.h"
#include "core/collectives/selector.h"
#include "core/net/message_stream.h"
#include "fuzz.h"
#include "peer.h"
#include "testing.h"

namespace tfdist::fuzz::collectives {
namespace {

constexpr size_t kMaxBytes = 1 << 20;  // of a collective of ours

// The input and output of a collective of this rank.
struct Memory {
  std::vector<char> input, output;
};

class Rank final : public CollectiveTable::Connections {
 public:
  explicit Rank(Input* input) : input_(*input) {
    group_.size = 2 + static_cast<int>(input_.Below(3));
    group_.rank = static_cast<int>(input_.Below(group_.size));
    for (int rank = 0; rank < group_.size; ++rank) {
      group_.addresses.push_back(StrCat("host", rank % 2, ":1"));
      group_.hosts.push_back(input_.Bit() ? rank % 2 : 0);
    }
    table_ = std::make_unique<CollectiveTable>(&group_, this, kMaxBytes);
    StreamOptions options;
    options.limits_of = LimitsOfCollectives;
    options.awaits_reason = true;
    for (int rank = 0; rank < group_.size; ++rank) {
      peers_.push_back(std::make_unique<Peer>(table_.get(), rank));
      if (rank == group_.rank) continue;
      SocketPair sockets(false);
      peers_[rank]->socket = std::move(sockets.theirs);
      peers_[rank]->stream = std::make_unique<MessageStream>(std::move(sockets.ours), options);
    }
  }

  void Run() {
    while (!input_.empty()) {
      Step();
      Turn();
    }
    const Status closed(StatusCode::kUnavailable, "closed");
    table_->Fail(closed, Status(), /*closes=*/true);
    End();
    CHECK((table_->empty() && ended_ == started_));
  }

 private:
  // As ProgressEngine::Peer.
  struct Peer final : StreamHandler {
    Peer(CollectiveTable* to, int of) : table(to), rank(of) {}
    Status OnFrame(const FrameHeader& header, std::string_view meta) override {
      return table->OnFrame(rank, header, meta);
    }
    Status OnPayload(const FrameHeader& header, uint64_t, std::vector<iovec>* target) override {
      const size_t before = target->size();
      if (Status s = table->PlaceChunk(rank, header, scratch.get(), target); !s.ok()) return s;
      uint64_t bytes = 0;
      for (size_t i = before; i < target->size(); ++i) bytes += (*target)[i].iov_len;
      CHECK(bytes == header.payload_bytes);
      return Status();
    }
    Status OnFrameEnd(const FrameHeader& header) override {
      return header.payload_bytes == 0 ? Status() : table->OnChunk(rank, header, scratch.get());
    }
    void OnSent(void* token, uint64_t bytes) override {
      table->OnChunkSent(static_cast<Collective*>(token), bytes);
    }

    CollectiveTable* const table;
    const int rank;
    std::unique_ptr<MessageStream> stream;
    Fd socket;
    std::string waiting;  // the rest of a frame
    const std::unique_ptr<char[]> scratch{new char[kChunkBytes]};
  };

  // Connections.
  bool IsConnected(int peer) const override { return peers_[peer]->stream != nullptr; }
  void Send(int peer, const FrameHeader& header, std::string meta, std::vector<iovec> payload,
            void* token) override {
    peers_[peer]->stream->Queue(header, std::move(meta), std::move(payload), {}, token);
  }
  void Flush() override {
    for (auto& peer : peers_) {
      if (peer->stream != nullptr) peer->stream->Flush(*peer);
    }
  }
  void Break(int peer, const std::string& why) override { Lose(peer, why); }
  void AbortStreams(const Status&) override {
    for (auto& peer : peers_) {
      if (peer->stream != nullptr) peer->stream->Detach();
    }
  }
  void Lose(int peer, const std::string& why) {
    if (peers_[peer]->stream == nullptr) return;
    const bool owed = peers_[peer]->stream->has_payloads();
    peers_[peer]->stream->Detach();
    lost_.push_back(std::move(peers_[peer]->stream));
    table_->PeerLost(peer, owed, why);
  }

  // Receives and sends, and finishes the ended collectives.
  void Turn() {
    for (int rank = 0; rank < group_.size; ++rank) {
      Peer& peer = *peers_[rank];
      if (peer.stream == nullptr) continue;
      if (const Status s = peer.stream->Receive(peer); !s.ok()) Lose(rank, s.message());
    }
    table_->CheckGone();
    for (auto& peer : peers_) {
      if (peer->stream == nullptr) continue;
      peer->stream->Unblock();
      peer->stream->Flush(*peer);
      fuzz::ReceiveAll(peer->socket);
    }
    lost_.clear();
    End();
  }
  void End() {
    for (CollectiveTable::Ended& one : table_->TakeEnded()) one.collective->Finish(one.status);
  }

  void Step() {
    const int rank = static_cast<int>(input_.Below(group_.size));
    Peer* const peer = rank == group_.rank ? nullptr : peers_[rank].get();
    const uint32_t what = input_.Below(16);
    if (peer == nullptr || what < 4) return Start();
    switch (what) {
      case 4:
        return Put(peer, input_.Text(100));
      case 5:
        return Put(peer, input_.Bit() ? Frame(CollectiveFrame::kQuery, "")
                                      : Frame(CollectiveFrame::kReply, Encode(SomeReply())));
      case 6:
        if (input_.Below(4) != 0) return;
        return Put(peer,
                   input_.Bit()
                       ? Frame(CollectiveFrame::kGoodbye, "")
                       : Frame(CollectiveFrame::kAbort,
                               Encode(Abort{static_cast<StatusCode>(input_.Number()), "why"})));
      case 7:
        if (input_.Below(4) == 0) shutdown(peer->socket.get(), SHUT_WR);
        return;
      case 8:
        if (input_.Below(8) == 0) table_->Cancel(SomeId());
        return table_->CheckDeadlines();
      case 9:
      case 10:
      case 11:
        return Put(peer, Frame(CollectiveFrame::kOpen, Encode(SomeSignature())));
      default:
        return Chunk(peer);
    }
  }

  CollectiveId SomeId() { return {1 + input_.Below(3), input_.Below(3)}; }
  Reply SomeReply() {
    return {input_.Bit(), "all_reduce", input_.Below(4), input_.Below(4), input_.Real()};
  }
  std::string Frame(CollectiveFrame type, const std::string& meta) {
    FrameHeader header;
    header.type = static_cast<uint8_t>(type);
    const CollectiveId id = SomeId();
    header.key = input_.Below(16) == 0 ? input_.Take<uint64_t>() : id.key;
    header.sequence = id.sequence;
    return FrameBytes(header, meta);
  }

  // A collective that any rank could start; some fields are others'.
  Signature SomeSignature() {
    Signature signature;
    signature.kind = static_cast<uint8_t>(1 + input_.Below(9));
    const auto kind = static_cast<CollectiveKind>(signature.kind);
    signature.dtype = static_cast<uint8_t>(input_.Bit() ? DType::kFloat32 : DType::kFloat16);
    if (Reduces(kind)) signature.reduce_op = static_cast<uint8_t>(1 + input_.Below(5));
    if (HasRoot(kind)) signature.root = input_.Below(group_.size);
    if (kind == CollectiveKind::kBarrier) {
      signature.dtype = static_cast<uint8_t>(DType::kBytes);
    } else if (HasBlocks(kind)) {
      const int count = group_.size * (kind == CollectiveKind::kAllToAll ? 2 : 1);
      for (int i = 0; i < count; ++i) signature.blocks.push_back(4 * input_.Below(64));
      if (kind == CollectiveKind::kAllToAll) {
        signature.blocks[group_.size + group_.rank] = signature.blocks[group_.rank];
      }
    } else {
      signature.elements = input_.Number();
    }
    signature.joins = table_->joins();
    signature.algorithm = static_cast<uint8_t>(SelectAlgorithm(signature, group_.hosts));
    const uint32_t other = input_.Below(32);
    if (other == 1) signature.algorithm = static_cast<uint8_t>(input_.Below(12));
    if (other == 2) signature.dtype = static_cast<uint8_t>(input_.Below(14));
    if (other == 3) signature.root = static_cast<uint32_t>(input_.Number());
    if (other == 4) signature.blocks.push_back(input_.Number());
    if (other == 5 && !signature.blocks.empty()) signature.blocks[0] = input_.Number();
    if (other == 6) signature.stripes_from = input_.Number();
    if (other == 7) signature.joins = input_.Below(3);
    if (other == 8) signature.kind = static_cast<uint8_t>(input_.Below(14));
    if (other == 9) signature.elements = input_.Number();
    return signature;
  }

  CollectiveOptions Options() {
    CollectiveOptions options;
    const uint64_t key = 1 + input_.Below(3);
    options.id = {key, table_->NextSequence(key)};
    options.signature.name = "ours";
    options.timeout_seconds = input_.Below(16) == 0 ? 1e-9 : 0;
    options.done = [this](const Status& status) {
      CHECK((status.ok() || !status.message().empty()));
      ++ended_;
    };
    ++started_;
    return options;
  }

  // As Communicator::Start.
  void Start() {
    if (input_.Below(8) == 0) {
      if (started_ - ended_ > 0) return;  // a rank joins when its collectives have ended
      auto join = table_->MakeJoin(Options(), &last_rank_);
      table_->Submit(join.get());
      return table_->Begin(std::move(join));
    }
    Signature signature = SomeSignature();
    const auto kind = static_cast<CollectiveKind>(signature.kind);
    // Communicator checks these.
    const size_t all = (kind == CollectiveKind::kAllToAll ? 2 : 1) * group_.size;
    if (signature.kind < 1 || signature.kind > 9 || signature.dtype < 1 || signature.dtype > 11 ||
        signature.root >= static_cast<uint32_t>(group_.size) ||
        signature.blocks.size() != (HasBlocks(kind) ? all : 0) ||
        signature.stripes_from != kNotStriped ||
        (Reduces(kind) && !CanReduce(static_cast<DType>(signature.dtype),
                                     static_cast<ReduceOp>(signature.reduce_op)))) {
      return;
    }
    for (const uint64_t block : signature.blocks) {
      if (block > kMaxBytes) return;
    }
    if (signature.elements > kMaxBytes / 8) return;
    CollectiveOptions options = Options();
    signature.name = options.signature.name;
    signature.joins = table_->joins();
    signature.algorithm = static_cast<uint8_t>(SelectAlgorithm(signature, group_.hosts));
    options.signature = signature;
    const DataBytes bytes = ExpectedBytes(signature, group_.rank, group_.size);
    auto memory = std::make_shared<Memory>();
    memory->input.resize(bytes.input);
    memory->output.resize(bytes.output);
    const FlatView in({{memory->input.data(), bytes.input}});
    const FlatView out({{memory->output.data(), bytes.output}});
    auto collective =
        MakePlanExecutor(std::move(options), group_.rank, group_.hosts, in, out, memory);
    table_->Submit(collective.get());
    table_->Begin(std::move(collective));
  }

  void Chunk(Peer* peer) {
    FrameHeader header;
    header.type = static_cast<uint8_t>(CollectiveFrame::kData);
    const CollectiveId id = SomeId();
    header.key = id.key;
    header.sequence = id.sequence;
    header.step = static_cast<uint16_t>(input_.Below(8) == 0 ? input_.Number() : input_.Below(3));
    header.offset = input_.Number() * (input_.Bit() ? 4 : 1);
    Put(peer, FrameBytes(header, "", std::string(input_.Number() % (kChunkBytes + 2), '\3')));
  }

  // All of the bytes, or a part: the rest comes before the next ones.
  void Put(Peer* peer, const std::string& bytes) {
    if (peer->stream == nullptr) return;
    peer->waiting += bytes;
    const size_t size = peer->waiting.size();
    const size_t part = input_.Below(4) != 0 ? size : input_.Below(0xffff) % (size + 1);
    const ssize_t sent =
        send(peer->socket.get(), peer->waiting.data(), part, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) peer->waiting.erase(0, static_cast<size_t>(sent));
  }

  Input& input_;
  Group group_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::unique_ptr<CollectiveTable> table_;
  std::vector<std::unique_ptr<MessageStream>> lost_;
  int last_rank_ = 0;
  uint64_t started_ = 0, ended_ = 0;
};

void Run(Input input) { Rank(&input).Run(); }

FUZZ_TARGET(Run, AnyBytes);

}  // namespace
}  // namespace tfdist::fuzz::collectives
