#include "core/net/tls/tls_transport.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/printable.h"
#include "core/net/frame.h"

namespace tfdist {
namespace {

using openssl::Entry;
using openssl::Functions;

// Values of OpenSSL's headers.
constexpr int kSourceSink = 0x400, kFlush = 11;                            // of a BIO
constexpr int kRetryRead = 0x01 | 0x08, kRetryFlags = 0x01 | 0x02 | 0x08;  // of a BIO
constexpr int kWantRead = 2, kWantWrite = 3, kEndOfTls = 6;                // SSL_get_error
constexpr unsigned int kNoPartialWildcards = 0x4, kNeverSubject = 0x20;
constexpr int kUpdateNotRequested = 0;

constexpr size_t kRecordBytes = 16 << 10;  // the largest content of a record
constexpr size_t kRecordHeaderBytes = 5;
constexpr size_t kMaxSealedRecord = kRecordBytes + 256 + kRecordHeaderBytes;
// More bytes per call of the socket cost more in cache misses than they save.
constexpr size_t kSealedBytes = 128 << 10;
constexpr size_t kSealedCapacity = kSealedBytes + 3 * kMaxSealedRecord;
constexpr size_t kInboxBytes = 128 << 10;
constexpr size_t kHandshakeInboxBytes = 4 << 10;
constexpr int kHandshakeReceives = 64;  // in one call, so that other connections have their turn
// AES-GCM permits 2^24.5 records with one key (RFC 8446, 5.5).
constexpr uint64_t kRecordsPerKey = uint64_t{1} << 23;

bool IsNumeric(const std::string& host) {
  std::array<char, sizeof(in6_addr)> address;
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

Status Exiting() { return Status(StatusCode::kUnavailable, "the process is exiting"); }

}  // namespace

TlsTransport::TlsTransport(int fd, std::shared_ptr<const TlsCredentials> credentials, bool dials)
    : fd_(fd),
      credentials_(std::move(credentials)),
      f_(credentials_->functions()),
      dials_(dials),
      records_per_key_(kRecordsPerKey),
      sealed_(new char[kSealedCapacity]),
      inbox_(new char[kHandshakeInboxBytes]),
      inbox_bytes_(kHandshakeInboxBytes) {}

TlsTransport::~TlsTransport() {
  const Entry entry;
  if (entry.open() && ssl_ != nullptr) f_.SSL_free(ssl_);
}

Status TlsTransport::Dial(int fd, std::shared_ptr<const TlsCredentials> credentials,
                          const std::string& host, std::unique_ptr<TlsTransport>* out) {
  return Create(fd, std::move(credentials), true, host, out);
}

Status TlsTransport::Accept(int fd, std::shared_ptr<const TlsCredentials> credentials,
                            std::unique_ptr<TlsTransport>* out) {
  return Create(fd, std::move(credentials), false, "", out);
}

Status TlsTransport::Create(int fd, std::shared_ptr<const TlsCredentials> credentials, bool dials,
                            const std::string& host, std::unique_ptr<TlsTransport>* out) {
  std::unique_ptr<TlsTransport> made(new TlsTransport(fd, std::move(credentials), dials));
  const Entry entry;
  if (!entry.open()) return Exiting();
  const Functions& f = made->f_;
  f.ERR_clear_error();
  made->ssl_ = f.SSL_new(made->credentials_->context());
  openssl::Bio* const bio = made->ssl_ == nullptr ? nullptr : f.BIO_new(Method(f));
  if (bio == nullptr) {
    return Status(StatusCode::kResourceExhausted, StrCat("TLS: ", openssl::TakeErrors(f)));
  }
  f.BIO_set_data(bio, made.get());
  f.BIO_set_init(bio, 1);
  f.SSL_set_bio(made->ssl_, bio, bio);  // owns it
  if (Status s = made->RequireName(host); !s.ok()) return s;
  if (dials) {
    f.SSL_set_connect_state(made->ssl_);
  } else {
    f.SSL_set_accept_state(made->ssl_);
  }
  *out = std::move(made);
  return Status();
}

Status TlsTransport::RequireName(const std::string& host) {
  expected_ = credentials_->fixed_name().value_or(host);
  if (expected_.empty()) return Status();
  openssl::VerifyParameters* const parameters = f_.SSL_get0_param(ssl_);
  f_.X509_VERIFY_PARAM_set_hostflags(parameters, kNoPartialWildcards | kNeverSubject);
  const int set =
      IsNumeric(expected_)
          ? f_.X509_VERIFY_PARAM_set1_ip_asc(parameters, expected_.c_str())
          : f_.X509_VERIFY_PARAM_set1_host(parameters, expected_.data(), expected_.size());
  if (set == 1) return Status();
  return InvalidArgument(StrCat("TLS: no certificate can be for the host '", expected_, "'"));
}

Status TlsTransport::Handshake() {
  const Entry entry;
  if (!entry.open()) return Exiting();
  if (!failure_.ok() || connected_) return failure_;
  f_.ERR_clear_error();
  TakeVerifyFailure();
  receives_ = kHandshakeReceives;
  const int result = f_.SSL_do_handshake(ssl_);
  connected_ = result == 1;
  if (!connected_) failure_ = Failure(result);
  Flush();  // also what tells the other side of a failure
  if (!connected_) return failure_;
  std::unique_ptr<char[]> inbox(new char[kInboxBytes]);
  std::memcpy(inbox.get(), inbox_.get() + inbox_begin_, inbox_end_ - inbox_begin_);
  inbox_end_ -= inbox_begin_;
  inbox_begin_ = 0;
  inbox_ = std::move(inbox);
  inbox_bytes_ = kInboxBytes;
  return Status();
}

// Sending.

size_t TlsTransport::Write(const std::vector<iovec>& pieces) {
  const Entry entry;
  if (!entry.open() || !connected_ || !failure_.ok() || !Flush()) return 0;
  f_.ERR_clear_error();
  const size_t taken = SealPieces(pieces);
  Flush();
  return taken;
}

// Large pieces are sealed where they are, small ones are gathered to records.
size_t TlsTransport::SealPieces(const std::vector<iovec>& pieces) {
  size_t taken = 0, small = 0;
  for (const iovec& piece : pieces) {
    const char* data = static_cast<const char*>(piece.iov_base);
    for (size_t left = piece.iov_len; left > 0;) {
      if (sealed_end_ + small >= kSealedBytes) break;
      size_t part;
      if (small == 0 && left >= kRecordBytes) {
        const size_t room = kSealedBytes - sealed_end_ + kRecordBytes - 1;
        part = std::min(left, room) / kRecordBytes * kRecordBytes;
        if (!Seal(data, part)) return taken;
        taken += part;
      } else {
        if (small_ == nullptr) small_.reset(new char[kRecordBytes]);
        part = std::min(left, kRecordBytes - small);
        std::memcpy(small_.get() + small, data, part);
        small += part;
        if (small == kRecordBytes) {
          if (!Seal(small_.get(), small)) return taken;
          taken += std::exchange(small, 0);
        }
      }
      data += part;
      left -= part;
    }
  }
  if (small > 0 && Seal(small_.get(), small)) taken += small;
  return taken;
}

bool TlsTransport::Seal(const char* data, size_t size) {
  records_ += (size + kRecordBytes - 1) / kRecordBytes;
  if (records_ > records_per_key_) {
    records_ = 0;
    ++key_updates_;
    f_.SSL_key_update(ssl_, kUpdateNotRequested);  // goes before the next record
  }
  size_t written = 0;
  const int result = f_.SSL_write_ex(ssl_, data, size, &written);
  if (result == 1) return true;
  failure_ = Failure(result);
  if (failure_.ok()) failure_ = Status(StatusCode::kInternal, "TLS: a record was not sealed");
  return false;
}

bool TlsTransport::Flush() {
  while (has_output() && !send_failed_) {
    const ssize_t sent =
        send(fd_, sealed_.get() + sealed_begin_, sealed_end_ - sealed_begin_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      send_failed_ = errno != EAGAIN && errno != EWOULDBLOCK;
      return false;
    }
    sealed_begin_ += static_cast<size_t>(sent);
  }
  if (has_output()) return false;
  sealed_begin_ = sealed_end_ = 0;
  return true;
}

// Receiving.

Status TlsTransport::Read(const std::vector<iovec>& pieces, size_t* received) {
  *received = 0;
  const Entry entry;
  if (!entry.open()) return Exiting();
  if (!failure_.ok()) return failure_;
  f_.ERR_clear_error();
  receives_ = 1;
  for (const iovec& piece : pieces) {
    for (size_t filled = 0; filled < piece.iov_len;) {
      size_t read = 0;
      const int result = f_.SSL_read_ex(ssl_, static_cast<char*>(piece.iov_base) + filled,
                                        piece.iov_len - filled, &read);
      if (result == 1) {
        filled += read;
        *received += read;
        continue;
      }
      failure_ = Failure(result);
      Flush();  // an alert, or an answer to an update of the key
      return *received > 0 ? Status() : failure_;
    }
  }
  return Status();
}

bool TlsTransport::has_input() const {
  const Entry entry;
  if (!entry.open()) return false;
  if (!failure_.ok() || f_.SSL_pending(ssl_) > 0) return true;
  const size_t there = inbox_end_ - inbox_begin_;
  if (there < kRecordHeaderBytes) return false;
  const auto* const head = reinterpret_cast<const uint8_t*>(inbox_.get() + inbox_begin_);
  return there >= kRecordHeaderBytes + (size_t{head[3]} << 8 | head[4]);
}

int TlsTransport::Receive(char* data, size_t size) {
  if (inbox_begin_ == inbox_end_) {
    if (receives_ == 0 || ended_ || receive_error_ != 0) return ended_ ? 0 : -1;
    --receives_;
    // The rest of the record goes to where it is opened, and the following ones into the inbox.
    const std::array<iovec, 2> targets = {iovec{data, size}, iovec{inbox_.get(), inbox_bytes_}};
    ssize_t received;
    do {
      received = readv(fd_, targets.data(), static_cast<int>(targets.size()));
    } while (received < 0 && errno == EINTR);
    if (received < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) receive_error_ = errno;
      return -1;
    }
    ended_ = received == 0;
    const auto all = static_cast<size_t>(received);
    const size_t direct = std::min(all, size);
    inbox_begin_ = 0;
    inbox_end_ = all - direct;
    if (!connected_ && first_bytes_.empty()) first_bytes_.assign(data, direct);
    return static_cast<int>(direct);
  }
  const size_t part = std::min(size, inbox_end_ - inbox_begin_);
  std::memcpy(data, inbox_.get() + inbox_begin_, part);
  inbox_begin_ += part;
  return static_cast<int>(part);
}

Status TlsTransport::Failure(int result) {
  const int error = f_.SSL_get_error(ssl_, result);
  if (receive_error_ != 0) {
    return Status(StatusCode::kUnavailable,
                  StrCat(connected_ ? "cannot receive: " : "TLS: cannot receive a handshake: ",
                         std::strerror(receive_error_)));
  }
  if (error == kWantRead && !ended_) return Status();
  if (connected_ && (ended_ || error == kEndOfTls)) return EndOfStream();
  if (error == kWantWrite) return Status(StatusCode::kInternal, "TLS: too much waits to be sent");
  return Status(StatusCode::kUnavailable, StrCat("TLS: ", Refusal()));
}

// Why there is no connection any more.
std::string TlsTransport::Refusal() const {
  if (!connected_ && BeginsFrame(first_bytes_)) {
    return "the other side is plain, and this side requires TLS";
  }
  std::string why = connected_ ? "" : TakeVerifyFailure();
  if (!why.empty()) {
    if (!expected_.empty()) why += StrCat(", expected one for '", expected_, "'");
    return StrCat("this side refuses the other one: ", why);
  }
  why = Printable(openssl::TakeErrors(f_));
  if (why.find("alert") != std::string::npos) {
    return StrCat("the other side refuses this one: ", why);
  }
  if (ended_) return "the other side closed the connection during the handshake";
  return StrCat(connected_ ? "the connection failed: " : "the handshake failed: ", why);
}

// OpenSSL's view of the socket.

const openssl::BioMethod* TlsTransport::Method(const Functions& f) {
  static const openssl::BioMethod* const method = [&f] {
    openssl::BioMethod* const made = f.BIO_meth_new(f.BIO_get_new_index() | kSourceSink, "tfdist");
    f.BIO_meth_set_read(made, OnRead);
    f.BIO_meth_set_write(made, OnWrite);
    f.BIO_meth_set_ctrl(made, OnControl);
    return made;
  }();
  return method;
}

int TlsTransport::OnRead(openssl::Bio* bio, char* data, int size) {
  const Functions& f = openssl::Loaded();
  if (size <= 0) return 0;
  auto* const self = static_cast<TlsTransport*>(f.BIO_get_data(bio));
  f.BIO_clear_flags(bio, kRetryFlags);
  const int received = self->Receive(data, static_cast<size_t>(size));
  if (received < 0 && self->receive_error_ == 0) f.BIO_set_flags(bio, kRetryRead);
  return received;
}

// Takes everything, up to a limit that only a peer exceeds that does not read.
int TlsTransport::OnWrite(openssl::Bio* bio, const char* data, int size) {
  const Functions& f = openssl::Loaded();
  if (size <= 0) return 0;
  auto* const self = static_cast<TlsTransport*>(f.BIO_get_data(bio));
  f.BIO_clear_flags(bio, kRetryFlags);
  const auto bytes = static_cast<size_t>(size);
  if (kSealedCapacity - self->sealed_end_ < bytes) return -1;
  std::memcpy(self->sealed_.get() + self->sealed_end_, data, bytes);
  self->sealed_end_ += bytes;
  return size;
}

long TlsTransport::OnControl(openssl::Bio*, int command, long, void*) {
  return command == kFlush ? 1 : 0;
}

}  // namespace tfdist
