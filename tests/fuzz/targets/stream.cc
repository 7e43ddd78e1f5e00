// One end of a data connection, with shared and exposed memory, whose peer sends anything.
//
// Input: which end it is and what it may share, then steps: the peer sends frames, parts of them or
// bytes of any kind, overwrites the shared memory, or answers exposed memory; our side sends,
// receives, sleeps or lets go of its memory. As long as the peer has kept to the protocol, all that
// it has sent must have come, whole and in order. The payload's memory goes after Detach.
#include <sys/mman.h>
#include <sys/stat.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/frames.h"
#include "core/net/message_stream.h"
#include "core/ps/protocol/message.h"
#include "fuzz.h"
#include "peer.h"
#include "testing.h"

namespace tfdist::fuzz::stream {
namespace {

constexpr size_t kMaxPayload = 100 << 10;

// A frame's content, in a line.
std::string Text(const FrameHeader& header, std::string_view meta, std::string_view payload) {
  return StrCat(int{header.type}, " ", header.key, " ", meta, "|", payload);
}

class Duel final : StreamHandler {
 public:
  explicit Duel(Input* input) : input_(*input) {
    const bool local = input_.Bit();
    accepts_ = input_.Bit();
    options_.share_memory = input_.Bit();
    options_.max_waiting_bytes = input_.Bit() ? UINT64_MAX : 2000;
    options_.awaits_reason = input_.Bit();
    options_.limits_of = input_.Bit() ? LimitsOfCollectives : ps::LimitsOfMessages;
    options_.buffer_bytes = input_.Bit() ? 64 : 16 << 10;
    options_.min_exposed = 256;
    options_.max_outgoing = input_.Bit() ? SIZE_MAX : 2;
    options_.receive_budget = input_.Bit() ? 1 << 20 : 1;
    SocketPair sockets(local);
    socket_ = std::move(sockets.theirs);
    stream_ = std::make_unique<MessageStream>(std::move(sockets.ours), options_);
    Greet(local);
  }

  void Run() {
    while (!input_.empty() && !broken_) Step();
    // Frames that are still under way.
    for (int i = 0; i < 500 && !broken_ && !expected_.empty(); ++i) {
      Put("", true);
      Receive();
    }
    if (!honest_ || detached_ || !stream_->wants_input()) return;
    CHECK((!broken_ && expected_.empty()));
  }

 private:
  // WELCOME, from the side that accepts.
  void Greet(bool local) {
    if (accepts_) {
      stream_->Welcome();
      stream_->Flush(*this);
      FrameHeaderBytes head;
      Fd descriptor;
      FrameHeader header;
      const TimePoint now = Clock::now();
      CHECK_OK(ReceiveWithDescriptor(socket_, head.data(), head.size(), &descriptor, now));
      CHECK_OK(Decode(head.data(), options_.limits_of, &header));
      const std::string meta = fuzz::ReceiveAll(socket_);
      CHECK((header.Is(FrameType::kWelcome) && meta.size() == header.meta_bytes));
      offered_ = readable_ = !meta.empty();
      if (descriptor.valid()) Map(descriptor, 0);
      return;
    }
    if (input_.Bit()) return;
    Sharing offer{false, false, exposed_.canary()};
    offered_ = readable_ = local;
    if (input_.Below(4) == 0) {
      offer.canary.address = input_.Number();
      readable_ = false;
    }
    std::string meta = Encode(offer);
    if (input_.Below(8) == 0) {
      meta = input_.Text(40);
      honest_ = false;
    }
    Fd descriptor;
    if (options_.share_memory) {
      // The peer makes the memory: as it should be, or any file.
      Fd memory(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      const bool right = input_.Below(4) != 0;
      offered_ &= right;
      readable_ &= right;
      channel_ = SharedChannel::Create();
      REQUIRE(channel_ != nullptr);
      descriptor = Fd(dup(right ? channel_->fd() : memory.get()));
      if (right) Map(descriptor, 1);
      CHECK(ftruncate(memory.get(), 4096) == 0);
    }
    if (!local) honest_ = false;  // only local peers offer anything
    if (!stream_->OnWelcome(meta, std::move(descriptor)).ok()) broken_ = true;
  }

  // The rings, to write to; our side writes `ring`.
  void Map(const Fd& descriptor, int ring) {
    struct stat about{};
    CHECK(fstat(descriptor.get(), &about) == 0);
    map_bytes_ = static_cast<size_t>(about.st_size);
    map_ =
        std::shared_ptr<char>(static_cast<char*>(mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE,
                                                      MAP_SHARED, descriptor.get(), 0)),
                              [bytes = map_bytes_](char* at) { munmap(at, bytes); });
    CHECK(map_.get() != MAP_FAILED);
    if (ring == 0) channel_ = SharedChannel::Open(Fd(dup(descriptor.get())));
  }

  // StreamHandler.
  Status OnFrame(const FrameHeader& header, std::string_view meta) override {
    CHECK(!detached_);
    FrameLimits limits;
    CHECK((options_.limits_of(header.type, &limits) || LimitsOfConnection(header.type, &limits)));
    if (header.type < kFirstCollectiveType) return Refusal();
    meta_ = meta;
    pieces_.clear();
    if (input_.Below(32) == 0) return Refusal();
    return Status();
  }
  Status OnPayload(const FrameHeader& header, uint64_t received,
                   std::vector<iovec>* target) override {
    CHECK((!detached_ && received < header.payload_bytes));
    if (input_.Below(16) == 0) {
      honest_ = false;  // the rest is discarded
      return Status();
    }
    const uint64_t left = header.payload_bytes - received;
    uint64_t room = std::min<uint64_t>(left, 1 + input_.Below(400) * 50);
    for (uint32_t i = 1 + input_.Below(3); i > 0 && room > 0; --i) {
      const uint64_t part = i == 1 ? room : 1 + (room - 1) / i;
      // Blocks of their own, so that a sanitizer detects accesses past the end.
      pieces_.emplace_back(part, '\0');
      target->push_back({pieces_.back().data(), part});
      room -= part;
    }
    return Status();
  }
  Status OnFrameEnd(const FrameHeader& header) override {
    CHECK(!detached_);
    std::string payload;
    for (const std::vector<char>& piece : pieces_) payload.append(piece.begin(), piece.end());
    if (honest_) {
      CHECK(!expected_.empty());
      CHECK(expected_.front() == Text(header, meta_, payload));
      expected_.pop_front();
    }
    pieces_.clear();
    if (input_.Below(8) == 0) QueueSomething();  // a handler may answer
    return Status();
  }
  void OnSent(void* token, uint64_t payload_bytes) override {
    const auto found = lent_.find(token);
    CHECK((found != lent_.end() && found->second->size() == payload_bytes));
    lent_.erase(found);
  }
  Status Refusal() {
    honest_ = false;
    return Status(StatusCode::kInternal, "refused");
  }

  void Step() {
    switch (input_.Below(16)) {
      case 0:
        honest_ = false;
        return Put(input_.Text(100));
      case 1:
        return Connection();
      case 2:
      case 3:
      case 4:
        return PutFrame();
      case 5:
        return PutExposed();
      case 6:
        return QueueSomething();
      case 7:
        return Overwrite();
      case 8:
        stream_->ReadNotifications();
        stream_->Sleep(input_.Bit());
        return;
      case 9:
        if (input_.Below(4) != 0) return;
        stream_->Detach();
        detached_ = true;
        lent_.clear();
        pieces_.clear();
        return;
      case 10:
        if (input_.Below(8) != 0) return;
        honest_ = false;
        shutdown(socket_.get(), SHUT_WR);
        return;
      case 11: {  // the peer takes all available bytes
        fuzz::ReceiveAll(socket_);
        if (channel_ == nullptr) return;
        std::vector<char> bytes(input_.Below(1000) * 100);
        channel_->Read({{bytes.data(), bytes.size()}});
        return;
      }
      case 12:
        return Put("", true);
      default:
        return Receive();
    }
  }

  void Receive() {
    if (stream_->shares_memory()) stream_->ReadNotifications();
    const Status status = stream_->Receive(*this);
    stream_->Unblock();
    stream_->Flush(*this);
    broken_ = !status.ok();
  }

  // The peer sends bytes: all that wait, or a part.
  void Put(const std::string& bytes, bool all = false) {
    waiting_ += bytes;
    const size_t size = all ? waiting_.size() : input_.Below(0xffff) % (waiting_.size() + 1);
    size_t sent = 0;
    if (shared_ && channel_ != nullptr) {
      sent = channel_->Write({{waiting_.data(), size}});
    } else {
      const ssize_t count = send(socket_.get(), waiting_.data(), size, MSG_NOSIGNAL | MSG_DONTWAIT);
      sent = count < 0 ? 0 : static_cast<size_t>(count);
    }
    waiting_.erase(0, sent);
  }

  FrameHeader SomeHeader() {
    FrameHeader header;
    header.type = options_.limits_of == LimitsOfCollectives
                      ? static_cast<uint8_t>(CollectiveFrame::kData)
                      : static_cast<uint8_t>(ps::MessageType::kSet);
    header.key = input_.Number();
    return header;
  }

  void PutFrame() {
    const FrameHeader header = SomeHeader();
    const std::string meta = input_.Text(200);
    const std::string payload(input_.Below(kMaxPayload / 100) * 100, static_cast<char>(header.key));
    expected_.push_back(Text(header, meta, payload));
    Put(FrameBytes(header, meta, payload), input_.Bit());
  }

  // A payload that stays in the peer's memory, which is ours; some of it is none.
  void PutExposed() {
    FrameHeader header = SomeHeader();
    std::string meta = input_.Text(20);
    std::vector<iovec> pieces;
    std::string payload;
    for (uint32_t i = 1 + input_.Below(3); i > 0; --i) {
      kept_.emplace_back(input_.Below(100) * 10, '\7');
      pieces.push_back({kept_.back().data(), kept_.back().size()});
      if (input_.Below(16) == 0) pieces.back().iov_base = reinterpret_cast<void*>(4096);
      if (pieces.back().iov_base != kept_.back().data()) honest_ = false;
      payload += kept_.back();
      header.payload_bytes += pieces.back().iov_len;
    }
    if (input_.Below(16) == 0) {
      header.payload_bytes = input_.Number();
      honest_ = false;
    }
    if (header.payload_bytes == 0) honest_ = false;
    expected_.push_back(Text(header, meta, payload));
    AppendExposed(pieces, &header, &meta);
    // Only a peer whose canary can be read may expose anything.
    if (!readable_ || (accepts_ && !joined_)) honest_ = false;
    Put(FrameBytes(header, meta));
  }

  // SHARED, RELEASE and REFUSE: in their turn, or not.
  void Connection() {
    FrameHeader header;
    const uint32_t what = input_.Below(4);
    const bool in_turn = !joined_ && offered_;
    if (what < 2) {
      Sharing sharing{input_.Below(4) != 0, input_.Bit(), exposed_.canary()};
      if (input_.Below(4) == 0) {
        sharing.canary.value[0] = 1;
        readable_ &= !accepts_;
      }
      if (!in_turn || !sharing.joined) honest_ = false;
      header.type = static_cast<uint8_t>(FrameType::kShared);
      Put(FrameBytes(header, Encode(sharing)), true);
      if (sharing.joined && !waiting_.empty()) honest_ = false;
      joined_ = sharing.joined;
      // From now on the peer writes to the rings.
      shared_ = joined_ && channel_ != nullptr && input_.Below(8) != 0;
      if (channel_ != nullptr && !shared_) honest_ = false;
      return;
    }
    honest_ = false;
    header.type = static_cast<uint8_t>(what == 2 ? FrameType::kRelease : FrameType::kRefuse);
    Put(FrameBytes(header, input_.Bit() ? "" : input_.Text(20)), true);
  }

  void QueueSomething() {
    if (detached_) return;
    FrameHeader header;
    header.type = SomeHeader().type;
    auto payload = std::make_shared<std::string>(input_.Below(1000) * 10, 'q');
    const size_t half = payload->size() / 2;
    std::vector<iovec> pieces = {{payload->data(), half},
                                 {payload->data() + half, payload->size() - half}};
    if (payload->empty()) pieces.clear();
    if (input_.Bit() && !payload->empty()) {
      void* const token = payload->data();
      lent_[token] = payload;
      stream_->Queue(header, "meta", pieces, {}, token, input_.Bit());
    } else {
      stream_->Queue(header, "meta", pieces, {payload});
    }
    stream_->Flush(*this);
  }

  // The indices and flags of a ring, or any of its bytes.
  void Overwrite() {
    if (map_ == nullptr) return;
    honest_ = false;
    const size_t ring = map_bytes_ / 2 * input_.Below(2);
    const size_t at = input_.Bit() ? 64 * input_.Below(3) + 4 * input_.Below(2)
                                   : input_.Below(0xffff) * 4 % (map_bytes_ / 2);
    const uint64_t value = input_.Number();
    std::memcpy(map_.get() + ring + at, &value, sizeof(uint32_t));
  }

  Input& input_;
  StreamOptions options_;
  bool accepts_ = false, offered_ = false, readable_ = false, joined_ = false, shared_ = false;
  bool honest_ = true, broken_ = false, detached_ = false;
  // Before the stream, which reads of it.
  std::map<void*, std::shared_ptr<std::string>> lent_;
  std::deque<std::vector<char>> pieces_;  // of the payload that is being received
  std::string meta_;
  std::deque<std::string> expected_;  // frames that the peer has sent
  ExposedMemory exposed_;
  std::deque<std::string> kept_;            // that the peer exposes
  std::unique_ptr<SharedChannel> channel_;  // the peer's end
  std::shared_ptr<char> map_;
  size_t map_bytes_ = 0;
  std::string waiting_;  // of the peer, to be sent
  Fd socket_;
  std::unique_ptr<MessageStream> stream_;
};

void Run(Input input) { Duel(&input).Run(); }

FUZZ_TARGET(Run, AnyBytes);

}  // namespace
}  // namespace tfdist::fuzz::stream
