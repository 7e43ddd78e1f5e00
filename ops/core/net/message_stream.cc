#include "core/net/message_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/base/fields.h"

namespace tfdist {
namespace {

constexpr size_t kMaxPieces = 256;  // per system call
constexpr size_t kDiscardBytes = 64 << 10;

Status Unexpected(const char* what) {
  return Status(StatusCode::kInternal, StrCat("an unexpected ", what, " frame"));
}

std::unique_ptr<Transport> TransportOf(PeerSocket* socket) {
  if (socket->tls != nullptr) return std::move(socket->tls);
  return std::make_unique<PlainTransport>(socket->fd.get());
}

uint64_t BytesOf(const std::vector<iovec>& pieces) {
  const auto add = [](uint64_t sum, const iovec& piece) { return sum + piece.iov_len; };
  return std::accumulate(pieces.begin(), pieces.end(), uint64_t{0}, add);
}

}  // namespace

std::string Encode(const Sharing& sharing) { return EncodeFields(sharing); }

Status Decode(std::string_view bytes, const char* what, Sharing* sharing) {
  return DecodeFields(bytes, what, sharing);
}

MessageStream::MessageStream(PeerSocket socket, const StreamOptions& options)
    : options_(options),
      process_(std::move(socket.process)),
      transport_(TransportOf(&socket)),
      socket_(std::move(socket.fd)),
      buffer_(options.buffer_bytes) {}

// Sending.

void MessageStream::Queue(FrameHeader header, std::string meta, std::vector<iovec> payload,
                          std::vector<std::shared_ptr<const void>> owners, void* token,
                          bool urgent) {
  Outgoing frame;
  header.payload_bytes = BytesOf(payload);
  header.exposed = 0;
  header.meta_bytes = static_cast<uint32_t>(meta.size());
  frame.header = header;
  frame.urgent = urgent;
  frame.owners = std::move(owners);
  frame.token = token;
  if (peer_reads_ && ToBeExposed(frame, payload.size())) {
    Expose(&frame, std::move(payload), &meta);
  } else {
    frame.payload = std::move(payload);
    outgoing_bytes_ += header.payload_bytes;
  }
  WriteHead(meta, &frame);
  outgoing_.push_back(std::move(frame));
}

bool MessageStream::ToBeExposed(const Outgoing& frame, size_t pieces) const {
  const FrameHeader& header = frame.header;
  if (exposed_count_ > 0 && frame.token != nullptr && HasExposed(frame.token)) return true;
  return header.payload_bytes >= options_.min_exposed && pieces <= options_.max_exposed_pieces &&
         exposed_count_ < options_.max_exposed_frames &&
         exposed_bytes_ < options_.max_waiting_bytes &&
         !HasRoom(kFrameHeaderBytes + header.meta_bytes + header.payload_bytes);
}

void MessageStream::Expose(Outgoing* frame, std::vector<iovec> payload, std::string* meta) {
  if (payload.size() > options_.max_exposed_pieces) {  // their addresses would not fit into a frame
    auto copy = std::make_shared<std::vector<char>>();
    copy->reserve(frame->header.payload_bytes);
    for (const iovec& piece : payload) {
      const char* const bytes = static_cast<const char*>(piece.iov_base);
      copy->insert(copy->end(), bytes, bytes + piece.iov_len);
    }
    payload = {{copy->data(), copy->size()}};
    frame->owners = {std::move(copy)};
  }
  frame->exposed = std::move(payload);
  frame->meta_bytes = meta->size();
  AppendExposed(frame->exposed, &frame->header, meta);
  frame->urgent = true;  // the sender's memory is taken until the peer looks
  ++exposed_count_;
  exposed_bytes_ += frame->header.payload_bytes;
  if (frame->token == nullptr) return;
  for (auto& [token, count] : exposed_tokens_) {
    if (token == frame->token) return void(++count);
  }
  exposed_tokens_.emplace_back(frame->token, 1);
}

// The peer has copied it.
void MessageStream::Released(const Outgoing& frame) {
  --exposed_count_;
  exposed_bytes_ -= frame.header.payload_bytes;
  for (auto& entry : exposed_tokens_) {
    if (entry.first != frame.token || --entry.second > 0) continue;
    entry = exposed_tokens_.back();
    return exposed_tokens_.pop_back();
  }
}

bool MessageStream::HasExposed(const void* token) const {
  return std::any_of(exposed_tokens_.begin(), exposed_tokens_.end(),
                     [token](const auto& entry) { return entry.first == token; });
}

void MessageStream::WriteHead(std::string_view meta, Outgoing* frame) {
  const FrameHeaderBytes head = Encode(frame->header);
  std::string bytes;
  bytes.reserve(head.size() + meta.size());
  bytes.assign(head.begin(), head.end());
  bytes += meta;
  frame->head = std::move(bytes);
  frame->bytes = frame->head.size() + BytesOf(frame->payload);
}

void MessageStream::QueueConnectionFrame(FrameType type, std::string_view meta) {
  FrameHeader header;
  header.type = static_cast<uint8_t>(type);
  Queue(header, std::string(meta));
}

// In the shared memory, behind the queued data. As long as no side has to wait, two copies take
// less time than looking up each page of another process.
bool MessageStream::HasRoom(uint64_t bytes) const {
  if (channel_ == nullptr) return false;
  const uint64_t room = channel_->Room() + front_sent_;
  for (size_t i = 0; i < outgoing_.size() && bytes <= room; ++i) bytes += outgoing_[i].bytes;
  return bytes <= room;
}

bool MessageStream::has_payloads() const {
  return !exposed_frames_.empty() ||
         std::any_of(outgoing_.begin(), outgoing_.end(),
                     [](const Outgoing& frame) { return frame.header.payload_bytes > 0; });
}

size_t MessageStream::Waiting(uint8_t type) const {
  return std::count_if(outgoing_.begin(), outgoing_.end(),
                       [type](const Outgoing& frame) { return frame.header.type == type; });
}

void MessageStream::Flush(StreamHandler& handler) {
  while (!outgoing_.empty() && !blocked_) {
    const size_t written = Write();
    blocked_ = written == 0;
    Advance(written, handler);
  }
  if (!transport_->Flush()) blocked_ = true;
}

// As much as there is room for, of as many frames as go into one call.
size_t MessageStream::Write() {
  batch_.clear();
  uint64_t gathered = 0;
  bool urgent = false;
  size_t first = front_piece_, offset = front_offset_;
  for (Outgoing& frame : outgoing_) {
    if (batch_.size() + 2 > kMaxPieces) break;
    urgent |= frame.urgent;
    for (size_t i = first; i <= frame.payload.size() && batch_.size() < kMaxPieces; ++i) {
      const iovec piece =
          i == 0 ? iovec{frame.head.data(), frame.head.size()} : frame.payload[i - 1];
      if (piece.iov_len > offset) {
        batch_.push_back({static_cast<char*>(piece.iov_base) + offset, piece.iov_len - offset});
        gathered += piece.iov_len - offset;
      }
      offset = 0;
    }
    first = 0;
    if (frame.last_on_socket) break;
  }
  if (out_shared_) {
    const size_t written = channel_->Write(batch_);
    // An idle peer must make room, too.
    if (channel_->ReaderSleeps(urgent || written < gathered)) Notify();
    return written;
  }
  return transport_->Write(batch_);
}

void MessageStream::Advance(size_t bytes, StreamHandler& handler) {
  while (!outgoing_.empty()) {
    Outgoing& frame = outgoing_.front();
    while (front_piece_ <= frame.payload.size()) {
      const bool head = front_piece_ == 0;
      const size_t size = head ? frame.head.size() : frame.payload[front_piece_ - 1].iov_len;
      const size_t part = std::min(bytes, size - front_offset_);
      if (!head) bytes_sent_ += part;
      front_offset_ += part;
      front_sent_ += part;
      bytes -= part;
      if (front_offset_ < size) return;
      if (!head && frame.owners.size() > 1) frame.owners[front_piece_ - 1].reset();
      front_offset_ = 0;
      ++front_piece_;
    }
    Outgoing sent = std::move(frame);
    outgoing_.pop_front();
    front_sent_ = front_piece_ = 0;
    if (sent.last_on_socket) out_shared_ = true;
    if (sent.header.exposed > 0) {
      bytes_sent_ += sent.header.payload_bytes;
      exposed_frames_.push_back(std::move(sent));
      continue;
    }
    outgoing_bytes_ -= sent.header.payload_bytes;
    if (sent.token != nullptr) handler.OnSent(sent.token, sent.header.payload_bytes);
  }
}

// Receiving.

Status MessageStream::Receive(StreamHandler& handler, bool* any) {
  if (in_shared_ && sleeps_) {
    channel_->StayAwake();
    sleeps_ = false;
  }
  if (blocked_ && out_shared_ && channel_->Room() > 0) blocked_ = false;
  // First the input that was left because there was too much to send.
  if (Status s = Consume(handler); !s.ok()) return s;
  for (size_t budget = options_.receive_budget;
       wants_input() && (budget > 0 || transport_->has_input());) {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    size_t received = 0;
    if (Status s = Read(&received); !s.ok() || received == 0) return s;
    if (any != nullptr) *any = true;
    budget -= std::min(budget, received);
    if (detached_) continue;
    if (Status s = FillTarget(handler, &received); !s.ok()) return s;
    if (detached_) continue;
    end_ += received;
    if (Status s = ExpectPayload(handler); !s.ok()) return s;
    if (Status s = Consume(handler); !s.ok()) return s;
  }
  return Status();
}

// Once: into the payload's memory, and following bytes into the buffer. `received` 0: there is
// nothing.
Status MessageStream::Read(size_t* received) {
  batch_.clear();
  uint64_t left = in_payload_ ? incoming_.payload_bytes - payload_received_ : 0;
  for (size_t i = target_next_; i < target_.size() && batch_.size() < kMaxPieces; ++i) {
    batch_.push_back(target_[i]);
    left -= target_[i].iov_len;
  }
  // The next header may follow in the same read, if the rest of the payload has its memory in it.
  if (left == 0 && batch_.size() < kMaxPieces) {
    batch_.push_back({buffer_.data() + end_, buffer_.size() - end_});
  }
  if (in_shared_) {
    const bool ended = hung_up_;  // the peer has written everything before
    const ssize_t read = channel_->Read(batch_);
    if (read < 0) return Status(StatusCode::kUnavailable, "the shared memory was overwritten");
    if (read == 0 && ended) return EndOfStream();
    if (read > 0 && channel_->WriterWaits()) Notify();
    *received = static_cast<size_t>(read);
    return Status();
  }
  return transport_->Read(batch_, received);
}

// Handles every frame of the buffer whose meta is whole.
Status MessageStream::Consume(StreamHandler& handler) {
  stalled_ = false;
  while (!detached_ && !in_payload_ && end_ - begin_ >= kFrameHeaderBytes) {
    if (!wants_input()) {
      stalled_ = true;
      return Status();
    }
    const char* const head = buffer_.data() + begin_;
    if (Status s = Decode(head, options_.limits_of, &incoming_); !s.ok()) return s;
    const size_t whole = kFrameHeaderBytes + incoming_.meta_bytes;
    if (end_ - begin_ < whole) {
      // Memory is taken as the bytes come.
      if (end_ - begin_ == buffer_.size()) buffer_.resize(std::min(whole, 2 * buffer_.size()));
      return Status();
    }
    begin_ += whole;
    const std::string_view meta(head + kFrameHeaderBytes, incoming_.meta_bytes);
    if (Status s = ConsumeFrame(handler, meta); !s.ok()) return s;
  }
  return Status();
}

Status MessageStream::ConsumeFrame(StreamHandler& handler, std::string_view meta) {
  if (incoming_.Is(FrameType::kShared)) return OnShared(meta);
  if (incoming_.Is(FrameType::kRelease)) return OnRelease(handler);
  if (incoming_.Is(FrameType::kRefuse)) return OnRefuse(handler);
  std::vector<iovec> exposed;
  if (incoming_.exposed > 0) {
    if (Status s = TakeExposed(incoming_, &meta, &exposed); !s.ok()) return s;
    if (!peer_memory_) {
      return Status(StatusCode::kInvalidArgument, "an unexpected payload in exposed memory");
    }
    if (refuses_) return Status();  // it comes again
  }
  discards_ = withdrawn_ && incoming_.payload_bytes > 0;
  if (!discards_) {
    if (Status s = handler.OnFrame(incoming_, meta); !s.ok() || detached_) return s;
  }
  payload_received_ = payload_touched_ = 0;
  if (!exposed.empty()) return discards_ ? Status() : CopyExposed(handler, std::move(exposed));
  if (incoming_.payload_bytes == 0) return handler.OnFrameEnd(incoming_);
  in_payload_ = true;
  return ExpectPayload(handler);
}

// Where there is none left, asks for memory for the payload's next bytes, and moves the buffered
// bytes there.
Status MessageStream::ExpectPayload(StreamHandler& handler) {
  while (in_payload_ && target_.empty()) {
    if (!discards_) {
      if (Status s = handler.OnPayload(incoming_, payload_received_, &target_); !s.ok()) return s;
      discards_ = target_.empty();
    }
    if (discards_) {
      if (discarded_ == nullptr) discarded_.reset(new char[kDiscardBytes]);
      const uint64_t left = incoming_.payload_bytes - payload_received_;
      target_.push_back({discarded_.get(), std::min<uint64_t>(left, kDiscardBytes)});
    }
    size_t buffered = 0;
    for (const iovec& piece : target_) {
      const size_t part = std::min(piece.iov_len, end_ - begin_);
      if (part == 0) break;
      std::memcpy(piece.iov_base, buffer_.data() + begin_, part);
      begin_ += part;
      buffered += part;
    }
    if (buffered == 0) return Status();
    if (Status s = FillTarget(handler, &buffered); !s.ok()) return s;
  }
  return Status();
}

// Accounts for bytes that are in the payload's memory, and takes them off `received`.
Status MessageStream::FillTarget(StreamHandler& handler, size_t* received) {
  if (!in_payload_) return Status();
  while (target_next_ < target_.size() && *received > 0) {
    iovec& piece = target_[target_next_];
    const size_t taken = std::min(*received, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + taken;
    piece.iov_len -= taken;
    payload_received_ += taken;
    *received -= taken;
    if (!discards_) bytes_received_ += taken;
    if (piece.iov_len == 0) ++target_next_;
  }
  payload_touched_ = payload_received_;
  if (target_next_ < target_.size()) return Status();
  target_.clear();
  target_next_ = 0;
  if (payload_received_ < incoming_.payload_bytes) return Status();
  in_payload_ = false;
  return withdrawn_ ? Status() : handler.OnFrameEnd(incoming_);
}

// All at once: a payload of 100 MB keeps other streams waiting for some 20 ms.
Status MessageStream::CopyExposed(StreamHandler& handler, std::vector<iovec> pieces) {
  RemoteRead remote(*peer_memory_, std::move(pieces));
  while (payload_received_ < incoming_.payload_bytes) {
    std::vector<iovec> target;
    if (Status s = handler.OnPayload(incoming_, payload_received_, &target); !s.ok()) return s;
    if (target.empty()) break;
    const uint64_t bytes = BytesOf(target);
    payload_touched_ += bytes;
    const Status s = remote.Read(target.data(), target.size());
    if (s.code() == StatusCode::kUnavailable && options_.awaits_reason) {
      withdrawn_ = true;  // the peer gives up; its reason or its end follows
      return Status();
    }
    if (s.code() == StatusCode::kFailedPrecondition) {
      refuses_ = true;
      bytes_received_ -= payload_received_;
      QueueConnectionFrame(FrameType::kRefuse, "");
      handler.OnUnreadable(incoming_, std::move(target));
      return Status();
    }
    if (!s.ok()) return s;
    payload_received_ += bytes;
    bytes_received_ += bytes;
  }
  QueueConnectionFrame(FrameType::kRelease, "");
  return handler.OnFrameEnd(incoming_);
}

// Memory of both.

void MessageStream::Welcome() {
  if (process_ != nullptr && options_.share_memory && !detached_) {
    channel_ = SharedChannel::Create();
  }
  const bool offers =
      process_ != nullptr && !detached_ && (channel_ != nullptr || !options_.share_memory);
  if (!offers) return QueueConnectionFrame(FrameType::kWelcome, "");
  offered_ = settling_ = true;
  exposed_ = std::make_unique<ExposedMemory>();
  const std::string meta = Encode(Sharing{false, false, exposed_->canary()});
  if (channel_ == nullptr) return QueueConnectionFrame(FrameType::kWelcome, meta);
  // A new socket has room. If it is broken, Receive will find out.
  [[maybe_unused]] const Status sent = SendWithDescriptor(
      socket_, EncodeFrame(FrameType::kWelcome, meta), channel_->fd(), Clock::now());
}

Status MessageStream::OnWelcome(std::string_view meta, Fd descriptor) {
  if (meta.empty()) return Status();
  if (process_ == nullptr) return Unexpected("WELCOME");
  Sharing offer;
  if (Status s = Decode(meta, "WELCOME frame", &offer); !s.ok()) return s;
  if (options_.share_memory) {
    channel_ = SharedChannel::Open(std::move(descriptor));
    if (channel_ == nullptr) {
      QueueConnectionFrame(FrameType::kShared, Encode(Sharing{}));
      return Status();
    }
  }
  settling_ = true;
  Share(offer.canary);
  return Status();
}

Status MessageStream::OnShared(std::string_view meta) {
  Sharing sharing;
  if (Status s = Decode(meta, "SHARED frame", &sharing); !s.ok()) return s;
  if (!settling_ || (!sharing.joined && !offered_)) return Unexpected("SHARED");
  settling_ = false;
  if (!sharing.joined) {
    exposed_.reset();
    channel_.reset();
    return Status();
  }
  if (channel_ != nullptr) {
    in_shared_ = true;
    begin_ = end_ = 0;  // wake-up bytes, if anything
  }
  peer_reads_ = sharing.reads;
  if (!offered_) return Status();
  if (channel_ != nullptr) channel_->CloseFd();
  Share(sharing.canary);
  return Status();
}

// Uses the memory that the peer offers, and offers the same.
void MessageStream::Share(const CanaryInfo& canary) {
  peer_memory_.emplace(process_, canary);
  if (!peer_memory_->IsReadable()) peer_memory_.reset();
  if (exposed_ == nullptr) exposed_ = std::make_unique<ExposedMemory>();
  QueueConnectionFrame(FrameType::kShared,
                       Encode(Sharing{true, peer_memory_.has_value(), exposed_->canary()}));
  outgoing_.back().last_on_socket = channel_ != nullptr;
}

Status MessageStream::OnRelease(StreamHandler& handler) {
  if (exposed_frames_.empty()) return Unexpected("RELEASE");
  const Outgoing frame = std::move(exposed_frames_.front());
  exposed_frames_.pop_front();
  Released(frame);
  if (frame.token != nullptr) handler.OnSent(frame.token, frame.header.payload_bytes);
  return Status();
}

// Sends the exposed payloads, and exposes nothing more.
Status MessageStream::OnRefuse(StreamHandler& handler) {
  if (exposed_frames_.empty()) return Unexpected("REFUSE");
  peer_reads_ = false;
  std::deque<Outgoing> again = std::exchange(exposed_frames_, {});
  for (const Outgoing& frame : again) bytes_sent_ -= frame.header.payload_bytes;
  const bool begun = front_sent_ > 0;
  if (begun && outgoing_.front().header.exposed > 0) {
    // The rest of its head has to follow. The peer passes over it.
    Outgoing rest;
    rest.head = outgoing_.front().head;
    rest.bytes = outgoing_.front().bytes;
    again.push_back(std::exchange(outgoing_.front(), std::move(rest)));
  }
  outgoing_.insert(outgoing_.begin() + (begun ? 1 : 0), std::make_move_iterator(again.begin()),
                   std::make_move_iterator(again.end()));
  for (Outgoing& frame : outgoing_) {
    if (frame.header.exposed > 0) SendWhole(&frame);
  }
  handler.OnResent(exposed_count_);
  outgoing_bytes_ += std::exchange(exposed_bytes_, 0);
  exposed_count_ = 0;
  exposed_tokens_.clear();
  return Status();
}

void MessageStream::SendWhole(Outgoing* frame) {
  const std::string meta = frame->head.substr(kFrameHeaderBytes, frame->meta_bytes);
  frame->header.exposed = 0;
  frame->header.meta_bytes = static_cast<uint32_t>(meta.size());
  frame->payload = std::exchange(frame->exposed, {});
  WriteHead(meta, frame);
}

void MessageStream::Notify() {
  // If the socket is full, there are bytes enough in it; if it is broken, the peer knows.
  const char byte = 0;
  [[maybe_unused]] const ssize_t sent =
      send(socket_.get(), &byte, sizeof(byte), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void MessageStream::ReadNotifications() {
  std::array<char, 64> bytes;
  while (in_shared_ && !hung_up_) {
    const ssize_t read = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    hung_up_ = read <= 0;
    if (read < static_cast<ssize_t>(bytes.size())) return;
  }
}

bool MessageStream::Sleep(bool deep_sleep) {
  if (transport_->has_input() && wants_input()) return false;
  if (!in_shared_ || (sleeps_ && deep_sleep_ == deep_sleep)) return true;
  deep_sleep_ = deep_sleep;
  sleeps_ = channel_->Sleep(deep_sleep);
  if (!sleeps_) channel_->StayAwake();
  return sleeps_;
}

void MessageStream::Detach() {
  exposed_.reset();  // before its memory goes to others
  peer_reads_ = false;
  exposed_frames_.clear();
  exposed_tokens_.clear();
  exposed_count_ = 0;
  exposed_bytes_ = outgoing_bytes_ = 0;
  if (front_sent_ > 0) {
    Outgoing& front = outgoing_.front();
    for (const iovec& piece : front.payload) {
      front.head.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    front.payload.clear();
    front.owners.clear();
    front.header.payload_bytes = 0;
    front.header.exposed = 0;
    front.token = nullptr;
    front_piece_ = 0;
    front_offset_ = front_sent_;
  }
  outgoing_.erase(std::remove_if(outgoing_.begin(), outgoing_.end(),
                                 [](const Outgoing& f) { return f.header.payload_bytes > 0; }),
                  outgoing_.end());
  target_.clear();
  target_next_ = 0;
  in_payload_ = false;
  begin_ = end_ = 0;
  detached_ = true;
}

}  // namespace tfdist
