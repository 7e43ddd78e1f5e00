#include "core/net/tls/credentials.h"

#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tfdist {
namespace {

using openssl::Functions;

// Values of OpenSSL's headers.
constexpr int kSessionCacheControl = 44, kMaxChainControl = 51;
constexpr int kChainCertificateControl = 89, kGetChainControl = 115, kMinVersionControl = 123,
              kMaxVersionControl = 124;
constexpr long kTls13 = 0x0304;
constexpr uint64_t kNoTicket = 1 << 14;
constexpr int kVerifyPeer = 1, kRefuseWithoutCertificate = 2;
constexpr int kSignatureFailure = 7, kNotYetValid = 9, kExpired = 10, kSelfSigned = 18,
              kSelfSignedInChain = 19, kNoIssuer = 20, kNoIssuerOfFirst = 21, kWrongHost = 62,
              kWrongAddress = 64;

constexpr long kMaxChainBytes = 32 << 10;  // of a peer, which is not trusted yet
// The first has hardware support on all processors of the last ten years.
constexpr char kCipherSuites[] =
    "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384";

thread_local std::string verify_failure;

std::mutex current_mutex;
std::shared_ptr<const TlsCredentials>& Current() {
  // Never destroyed, because threads may dial while the process exits.
  static auto* const current = new std::shared_ptr<const TlsCredentials>;
  return *current;
}

// A key with a password would be asked for at the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

std::vector<Owned<openssl::X509>> ReadCertificates(const Functions& f, const std::string& pem) {
  std::vector<Owned<openssl::X509>> certificates;
  openssl::Bio* const bio = f.BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  while (auto* const next = f.PEM_read_bio_X509(bio, nullptr, NoPassword, nullptr)) {
    certificates.emplace_back(next, f.X509_free);
  }
  f.BIO_free(bio);
  return certificates;
}

bool IsOfAuthority(int error) {
  return error == kSignatureFailure || error == kSelfSigned || error == kSelfSignedInChain ||
         error == kNoIssuer || error == kNoIssuerOfFirst;
}

// Why a certificate was refused, in words.
std::string Describe(const Functions& f, openssl::X509* certificate, int error) {
  const std::string text = f.X509_verify_cert_error_string(error);
  if (certificate == nullptr) return text;
  const std::string whose = StrCat("the certificate of ", SubjectOf(f, certificate));
  switch (error) {
    case kExpired:
      return StrCat(whose, " expired on ", TimeText(f, f.X509_get0_notAfter(certificate)));
    case kNotYetValid:
      return StrCat(whose, " is not valid before ",
                    TimeText(f, f.X509_get0_notBefore(certificate)));
    case kWrongHost:
    case kWrongAddress:
      return StrCat(whose, " is for ", NamesOf(f, certificate));
    default:
      return IsOfAuthority(error) ? StrCat(whose, " was not issued by this job's authority")
                                  : StrCat(whose, ": ", text);
  }
}

// Of the whole verification: where the authority is unknown, the certificate is the peer's own, and
// not the one at which the search ended.
std::string Describe(const Functions& f, const openssl::X509StoreContext* verification) {
  const int error = f.X509_STORE_CTX_get_error(verification);
  return Describe(f,
                  IsOfAuthority(error) ? f.X509_STORE_CTX_get0_cert(verification)
                                       : f.X509_STORE_CTX_get_current_cert(verification),
                  error);
}

// Of the verification that is under way on this thread; keeps its result.
int NoteFailure(int ok, openssl::X509StoreContext* verification) {
  if (ok != 1) verify_failure = Describe(openssl::Loaded(), verification);
  return ok;
}

}  // namespace

std::string TakeVerifyFailure() { return std::exchange(verify_failure, ""); }

Status TlsCredentials::Create(const TlsFiles& files, std::shared_ptr<const TlsCredentials>* out) {
  const Functions* f = nullptr;
  if (Status s = openssl::Load(&f); !s.ok()) return s;
  std::shared_ptr<TlsCredentials> made(new TlsCredentials(*f));
  const openssl::Entry entry;
  if (!entry.open()) return Status(StatusCode::kUnavailable, "the process is exiting");
  f->ERR_clear_error();
  const Status status = made->Prepare(files);
  f->ERR_clear_error();
  if (status.ok()) *out = std::move(made);
  return status;
}

TlsCredentials::~TlsCredentials() {
  const openssl::Entry entry;
  if (entry.open() && context_ != nullptr) f_.SSL_CTX_free(context_);
}

Status TlsCredentials::Prepare(const TlsFiles& files) {
  fixed_name_ = files.fixed_name;
  context_ = f_.SSL_CTX_new(f_.TLS_method());
  if (context_ == nullptr || f_.SSL_CTX_ctrl(context_, kMinVersionControl, kTls13, nullptr) != 1 ||
      f_.SSL_CTX_ctrl(context_, kMaxVersionControl, kTls13, nullptr) != 1 ||
      f_.SSL_CTX_set_ciphersuites(context_, kCipherSuites) != 1) {
    return Status(StatusCode::kFailedPrecondition,
                  StrCat("OpenSSL has no TLS 1.3: ", TakeErrors(f_)));
  }
  // A resumed session would skip the certificates.
  f_.SSL_CTX_set_options(context_, kNoTicket);
  f_.SSL_CTX_set_num_tickets(context_, 0);
  f_.SSL_CTX_ctrl(context_, kSessionCacheControl, 0, nullptr);
  f_.SSL_CTX_ctrl(context_, kMaxChainControl, kMaxChainBytes, nullptr);
  f_.SSL_CTX_set_verify(context_, kVerifyPeer | kRefuseWithoutCertificate, NoteFailure);
  if (Status s = TrustAuthority(files.authority); !s.ok()) return s;
  return UseCertificate(files);
}

Status TlsCredentials::TrustAuthority(const std::string& authority) {
  const auto trusted = ReadCertificates(f_, authority);
  if (trusted.empty()) {
    return InvalidArgument(StrCat("TLS: expected certificates of an authority in PEM, received ",
                                  authority.size(), " bytes without one"));
  }
  openssl::X509Store* const store = f_.SSL_CTX_get_cert_store(context_);
  for (const auto& certificate : trusted) {
    if (f_.X509_STORE_add_cert(store, certificate.get()) != 1) {
      return InvalidArgument(StrCat("TLS: the authority ", SubjectOf(f_, certificate.get()),
                                    " is not usable: ", TakeErrors(f_)));
    }
  }
  return Status();
}

Status TlsCredentials::UseCertificate(const TlsFiles& files) {
  const auto chain = ReadCertificates(f_, files.certificate);
  if (chain.empty()) {
    return InvalidArgument(StrCat("TLS: expected a certificate in PEM, received ",
                                  files.certificate.size(), " bytes without one"));
  }
  openssl::X509* const own = chain[0].get();
  if (Status s = CheckDates(own); !s.ok()) return s;
  if (f_.SSL_CTX_use_certificate(context_, own) != 1) {
    return InvalidArgument(
        StrCat("TLS: the certificate of ", SubjectOf(f_, own), " is not usable: ", TakeErrors(f_)));
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    constexpr long kAddReference = 1;
    f_.SSL_CTX_ctrl(context_, kChainCertificateControl, kAddReference, chain[i].get());
  }
  openssl::Bio* const bio =
      f_.BIO_new_mem_buf(files.key.data(), static_cast<int>(files.key.size()));
  f_.ERR_clear_error();
  const Owned<openssl::PrivateKey> key(
      f_.PEM_read_bio_PrivateKey(bio, nullptr, NoPassword, nullptr), f_.EVP_PKEY_free);
  f_.BIO_free(bio);
  if (key == nullptr) {
    return InvalidArgument(
        StrCat("TLS: expected a private key in PEM without a password, received ", files.key.size(),
               " bytes: ", TakeErrors(f_)));
  }
  if (f_.X509_check_private_key(own, key.get()) != 1) {
    return InvalidArgument(
        StrCat("TLS: the private key does not fit the certificate of ", SubjectOf(f_, own)));
  }
  if (f_.SSL_CTX_use_PrivateKey(context_, key.get()) != 1) {
    return InvalidArgument(StrCat("TLS: the private key is not usable: ", TakeErrors(f_)));
  }
  return CheckIssued(own);
}

// Whether peers that trust the same authority accept the process's own certificate: when it dials,
// and when it is dialled.
Status TlsCredentials::CheckIssued(openssl::X509* certificate) const {
  void* chain = nullptr;
  f_.SSL_CTX_ctrl(context_, kGetChainControl, 0, &chain);
  const std::pair<const char*, const char*> purposes[] = {{"ssl_client", "a client"},
                                                          {"ssl_server", "a server"}};
  for (const auto& [purpose, name] : purposes) {
    const Owned<openssl::X509StoreContext> check(f_.X509_STORE_CTX_new(), f_.X509_STORE_CTX_free);
    if (check == nullptr ||
        f_.X509_STORE_CTX_init(check.get(), f_.SSL_CTX_get_cert_store(context_), certificate,
                               chain) != 1 ||
        f_.X509_STORE_CTX_set_default(check.get(), purpose) != 1) {
      return Status(StatusCode::kResourceExhausted, StrCat("TLS: ", TakeErrors(f_)));
    }
    if (f_.X509_verify_cert(check.get()) == 1) continue;
    return InvalidArgument(
        StrCat("TLS: peers would refuse this process as ", name, ": ", Describe(f_, check.get())));
  }
  return Status();
}

Status TlsCredentials::CheckDates(openssl::X509* certificate) const {
  int error = 0;
  if (f_.X509_cmp_current_time(f_.X509_get0_notBefore(certificate)) > 0) error = kNotYetValid;
  if (f_.X509_cmp_current_time(f_.X509_get0_notAfter(certificate)) < 0) error = kExpired;
  if (error == 0) return Status();
  return InvalidArgument(StrCat("TLS: ", Describe(f_, certificate, error)));
}

void SetTlsCredentials(std::shared_ptr<const TlsCredentials> credentials) {
  const std::lock_guard<std::mutex> lock(current_mutex);
  Current().swap(credentials);
}

std::shared_ptr<const TlsCredentials> CurrentTlsCredentials() {
  const std::lock_guard<std::mutex> lock(current_mutex);
  return Current();
}

}  // namespace tfdist
