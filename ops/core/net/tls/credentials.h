// The credentials of a process for TLS: its certificate and key, and the authority that it trusts.
#ifndef TFDIST_OPS_CORE_NET_TLS_CREDENTIALS_H_
#define TFDIST_OPS_CORE_NET_TLS_CREDENTIALS_H_

#include <memory>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/net/tls/openssl.h"

namespace tfdist {

// In PEM.
struct TlsFiles {
  std::string certificate;  // the process's own, then the ones between it and the authority
  std::string key;
  std::string authority;  // one certificate or several
  // The name that each peer's certificate must have. Without it, the certificate of a peer that is
  // dialled must be for the host of its address.
  std::optional<std::string> fixed_name;
};

class TlsCredentials {
 public:
  // kFailedPrecondition without OpenSSL 3; kInvalidArgument if the files do not fit each other, or
  // the certificate is not valid now.
  static Status Create(const TlsFiles& files, std::shared_ptr<const TlsCredentials>* out);
  ~TlsCredentials();
  TlsCredentials(const TlsCredentials&) = delete;

  const openssl::Functions& functions() const { return f_; }
  openssl::SslContext* context() const { return context_; }
  const std::optional<std::string>& fixed_name() const { return fixed_name_; }

 private:
  explicit TlsCredentials(const openssl::Functions& functions) : f_(functions) {}
  Status Prepare(const TlsFiles& files);
  Status UseCertificate(const TlsFiles& files);
  Status TrustAuthority(const std::string& authority);
  Status CheckDates(openssl::X509* certificate) const;
  Status CheckIssued(openssl::X509* certificate) const;

  const openssl::Functions& f_;
  openssl::SslContext* context_ = nullptr;
  std::optional<std::string> fixed_name_;
};

// The credentials with which this process opens and accepts connections from now on; null: in the
// clear. Earlier connections stay as they are. Any thread.
void SetTlsCredentials(std::shared_ptr<const TlsCredentials> credentials);
std::shared_ptr<const TlsCredentials> CurrentTlsCredentials();

// Why the verification of a peer's certificate has failed, in this thread's last handshake; or "".
std::string TakeVerifyFailure();

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_TLS_CREDENTIALS_H_
