// The functions of OpenSSL 3 that TLS needs, found in the system's library at run time.
//
// The core does not link OpenSSL: TensorFlow's libraries export symbols of the same names, of
// BoringSSL, and the linker would take those. Functions of a library that was opened by itself are
// OpenSSL's own. Its headers are not needed to build.
#ifndef TFDIST_OPS_CORE_NET_TLS_OPENSSL_H_
#define TFDIST_OPS_CORE_NET_TLS_OPENSSL_H_

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <shared_mutex>
#include <string>

#include "core/base/status.h"

namespace tfdist::openssl {

// OpenSSL's types, of which only pointers are used.
struct Ssl;
struct SslContext;
struct SslMethod;
struct Bio;
struct BioMethod;
struct X509;
struct X509Store;
struct X509StoreContext;
struct X509Name;
struct X509Extension;
struct VerifyParameters;
struct PrivateKey;
struct Asn1Time;

using VerifyCallback = int (*)(int ok, X509StoreContext* context);
using PasswordCallback = int (*)(char* buffer, int size, int writes, void* data);

// Result type, name and arguments of each.
#define TFDIST_OPENSSL_FUNCTIONS(F)                                                      \
  F(unsigned long, OpenSSL_version_num, ())                                              \
  F(const char*, OpenSSL_version, (int))                                                 \
  F(int, OPENSSL_init_ssl, (uint64_t, const void*))                                      \
  F(unsigned long, ERR_get_error, ())                                                    \
  F(unsigned long, ERR_peek_last_error, ())                                              \
  F(void, ERR_clear_error, ())                                                           \
  F(void, ERR_error_string_n, (unsigned long, char*, size_t))                            \
  F(const char*, ERR_reason_error_string, (unsigned long))                               \
  F(const SslMethod*, TLS_method, ())                                                    \
  F(SslContext*, SSL_CTX_new, (const SslMethod*))                                        \
  F(void, SSL_CTX_free, (SslContext*))                                                   \
  F(long, SSL_CTX_ctrl, (SslContext*, int, long, void*))                                 \
  F(uint64_t, SSL_CTX_set_options, (SslContext*, uint64_t))                              \
  F(int, SSL_CTX_set_num_tickets, (SslContext*, size_t))                                 \
  F(int, SSL_CTX_set_ciphersuites, (SslContext*, const char*))                           \
  F(void, SSL_CTX_set_verify, (SslContext*, int, VerifyCallback))                        \
  F(int, SSL_CTX_use_certificate, (SslContext*, X509*))                                  \
  F(int, SSL_CTX_use_PrivateKey, (SslContext*, PrivateKey*))                             \
  F(X509Store*, SSL_CTX_get_cert_store, (const SslContext*))                             \
  F(Ssl*, SSL_new, (SslContext*))                                                        \
  F(void, SSL_free, (Ssl*))                                                              \
  F(void, SSL_set_bio, (Ssl*, Bio*, Bio*))                                               \
  F(void, SSL_set_connect_state, (Ssl*))                                                 \
  F(void, SSL_set_accept_state, (Ssl*))                                                  \
  F(int, SSL_do_handshake, (Ssl*))                                                       \
  F(int, SSL_get_error, (const Ssl*, int))                                               \
  F(int, SSL_read_ex, (Ssl*, void*, size_t, size_t*))                                    \
  F(int, SSL_write_ex, (Ssl*, const void*, size_t, size_t*))                             \
  F(int, SSL_pending, (const Ssl*))                                                      \
  F(int, SSL_key_update, (Ssl*, int))                                                    \
  F(VerifyParameters*, SSL_get0_param, (Ssl*))                                           \
  F(Bio*, BIO_new, (const BioMethod*))                                                   \
  F(int, BIO_free, (Bio*))                                                               \
  F(Bio*, BIO_new_mem_buf, (const void*, int))                                           \
  F(const BioMethod*, BIO_s_mem, ())                                                     \
  F(int, BIO_read, (Bio*, void*, int))                                                   \
  F(BioMethod*, BIO_meth_new, (int, const char*))                                        \
  F(int, BIO_meth_set_read, (BioMethod*, int (*)(Bio*, char*, int)))                     \
  F(int, BIO_meth_set_write, (BioMethod*, int (*)(Bio*, const char*, int)))              \
  F(int, BIO_meth_set_ctrl, (BioMethod*, long (*)(Bio*, int, long, void*)))              \
  F(int, BIO_get_new_index, ())                                                          \
  F(void, BIO_set_data, (Bio*, void*))                                                   \
  F(void*, BIO_get_data, (Bio*))                                                         \
  F(void, BIO_set_init, (Bio*, int))                                                     \
  F(void, BIO_set_flags, (Bio*, int))                                                    \
  F(void, BIO_clear_flags, (Bio*, int))                                                  \
  F(X509*, PEM_read_bio_X509, (Bio*, X509**, PasswordCallback, void*))                   \
  F(PrivateKey*, PEM_read_bio_PrivateKey, (Bio*, PrivateKey**, PasswordCallback, void*)) \
  F(void, X509_free, (X509*))                                                            \
  F(void, EVP_PKEY_free, (PrivateKey*))                                                  \
  F(int, X509_check_private_key, (const X509*, const PrivateKey*))                       \
  F(const Asn1Time*, X509_get0_notBefore, (const X509*))                                 \
  F(const Asn1Time*, X509_get0_notAfter, (const X509*))                                  \
  F(int, X509_cmp_current_time, (const Asn1Time*))                                       \
  F(int, ASN1_TIME_to_tm, (const Asn1Time*, std::tm*))                                   \
  F(X509Name*, X509_get_subject_name, (const X509*))                                     \
  F(int, X509_NAME_print_ex, (Bio*, const X509Name*, int, unsigned long))                \
  F(int, X509_get_ext_by_NID, (const X509*, int, int))                                   \
  F(X509Extension*, X509_get_ext, (const X509*, int))                                    \
  F(int, X509V3_EXT_print, (Bio*, X509Extension*, unsigned long, int))                   \
  F(int, X509_STORE_add_cert, (X509Store*, X509*))                                       \
  F(X509StoreContext*, X509_STORE_CTX_new, ())                                           \
  F(void, X509_STORE_CTX_free, (X509StoreContext*))                                      \
  F(int, X509_STORE_CTX_init, (X509StoreContext*, X509Store*, X509*, void*))             \
  F(int, X509_STORE_CTX_set_default, (X509StoreContext*, const char*))                   \
  F(int, X509_verify_cert, (X509StoreContext*))                                          \
  F(int, X509_STORE_CTX_get_error, (const X509StoreContext*))                            \
  F(X509*, X509_STORE_CTX_get_current_cert, (const X509StoreContext*))                   \
  F(X509*, X509_STORE_CTX_get0_cert, (const X509StoreContext*))                          \
  F(const char*, X509_verify_cert_error_string, (long))                                  \
  F(int, X509_VERIFY_PARAM_set1_host, (VerifyParameters*, const char*, size_t))          \
  F(int, X509_VERIFY_PARAM_set1_ip_asc, (VerifyParameters*, const char*))                \
  F(void, X509_VERIFY_PARAM_set_hostflags, (VerifyParameters*, unsigned int))

struct Functions {
#define TFDIST_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
  TFDIST_OPENSSL_FUNCTIONS(TFDIST_DECLARE)
#undef TFDIST_DECLARE
};

// Opens the library once, and keeps it. Fails if there is none, or if it is not OpenSSL 3.
inline constexpr char kLibrary[] = "libssl.so.3";
Status Load(const Functions** functions, const char* library = kLibrary);

// After a successful Load.
const Functions& Loaded();

// Held during each call into OpenSSL. When the process exits, threads may still have connections,
// and OpenSSL's own exit handler frees what they use: ours, which runs before, closes this gate.
class Entry {
 public:
  Entry();
  bool open() const { return open_; }

 private:
  std::shared_lock<std::shared_mutex> lock_;
  bool open_ = false;
};

// The reasons in this thread's queue of errors, oldest first, which is then empty; or "".
std::string TakeErrors(const Functions& f);

std::string TimeText(const Functions& f, const Asn1Time* time);
std::string SubjectOf(const Functions& f, const X509* certificate);
// The names that a certificate is for, as "DNS:worker-0, IP Address:10.0.0.1"; or "no name".
std::string NamesOf(const Functions& f, const X509* certificate);

}  // namespace tfdist::openssl

#endif  // TFDIST_OPS_CORE_NET_TLS_OPENSSL_H_
