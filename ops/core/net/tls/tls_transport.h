// TLS 1.3 over a non-blocking socket, with mutual authentication.
//
//     Write  ->  OpenSSL seals records of 16 KB  ->  sealed_  ->  send, many records in a call
//     Read   <-  OpenSSL opens records           <-  inbox_   <-  receive, many records in a call
//
// Bytes that Write has taken are sealed, so their memory is free. Used by one thread at a time.
#ifndef TFDIST_OPS_CORE_NET_TLS_TLS_TRANSPORT_H_
#define TFDIST_OPS_CORE_NET_TLS_TLS_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/net/tls/credentials.h"
#include "core/net/transport.h"

namespace tfdist {

// The first byte of a TLS handshake, and of its refusal.
inline constexpr char kTlsHandshake = 0x16, kTlsAlert = 0x15;

class TlsTransport final : public Transport {
 public:
  // The dialling side, which requires a certificate for `host`, a name or a numeric address, unless
  // the credentials have a fixed name. `fd` is the owner's.
  static Status Dial(int fd, std::shared_ptr<const TlsCredentials> credentials,
                     const std::string& host, std::unique_ptr<TlsTransport>* out);
  // The accepting side.
  static Status Accept(int fd, std::shared_ptr<const TlsCredentials> credentials,
                       std::unique_ptr<TlsTransport>* out);
  ~TlsTransport() override;
  TlsTransport(const TlsTransport&) = delete;

  // Continues the handshake until connected(), or until the socket must become readable, or
  // writable if has_output(). An error says why this or the other side refuses.
  Status Handshake();
  bool connected() const { return connected_; }

  size_t Write(const std::vector<iovec>& pieces) override;
  bool Flush() override;
  bool has_output() const override { return sealed_begin_ < sealed_end_; }
  Status Read(const std::vector<iovec>& pieces, size_t* received) override;
  bool has_input() const override;
  // Whether nothing can be sent any more.
  bool send_failed() const { return send_failed_; }

  // Records after which the key changes.
  void set_records_per_key(uint64_t records) { records_per_key_ = records; }
  uint64_t key_updates() const { return key_updates_; }

 private:
  TlsTransport(int fd, std::shared_ptr<const TlsCredentials> credentials, bool dials);
  static Status Create(int fd, std::shared_ptr<const TlsCredentials> credentials, bool dials,
                       const std::string& host, std::unique_ptr<TlsTransport>* out);
  Status RequireName(const std::string& host);

  bool Seal(const char* data, size_t size);
  size_t SealPieces(const std::vector<iovec>& pieces);
  // The outcome of a failed call of OpenSSL; OK if it only waits for bytes.
  Status Failure(int result);
  std::string Refusal() const;

  static const openssl::BioMethod* Method(const openssl::Functions& f);
  static int OnRead(openssl::Bio* bio, char* data, int size);
  static int OnWrite(openssl::Bio* bio, const char* data, int size);
  static long OnControl(openssl::Bio* bio, int command, long, void*);
  // Bytes of the inbox or the socket; 0: the end, -1: none for now.
  int Receive(char* data, size_t size);

  const int fd_;
  const std::shared_ptr<const TlsCredentials> credentials_;
  const openssl::Functions& f_;
  const bool dials_;
  openssl::Ssl* ssl_ = nullptr;
  std::string expected_;  // the name that the peer's certificate must have; may be empty
  bool connected_ = false;
  Status failure_;
  bool ended_ = false, send_failed_ = false;
  int receive_error_ = 0;    // errno
  std::string first_bytes_;  // of the peer, until connected
  uint64_t records_ = 0, records_per_key_, key_updates_ = 0;

  std::unique_ptr<char[]> sealed_;  // to be sent
  size_t sealed_begin_ = 0, sealed_end_ = 0;
  std::unique_ptr<char[]> inbox_;  // received, and not opened
  size_t inbox_begin_ = 0, inbox_end_ = 0, inbox_bytes_;
  int receives_ = 0;               // calls of the socket that Read may still make
  std::unique_ptr<char[]> small_;  // gathers small pieces to one record
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_TLS_TLS_TRANSPORT_H_
