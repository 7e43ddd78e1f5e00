// The functions that Python calls through ctypes; see collectives/communicator_c_api.cc.
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "core/base/c_error.h"
#include "core/net/tls/credentials.h"

extern "C" {

// `fixed_name` may be null.
int tfdist_tls_configure(const char* certificate, size_t certificate_bytes, const char* key,
                         size_t key_bytes, const char* authority, size_t authority_bytes,
                         const char* fixed_name, char* error, size_t error_size) {
  tfdist::TlsFiles files;
  files.certificate.assign(certificate, certificate_bytes);
  files.key.assign(key, key_bytes);
  files.authority.assign(authority, authority_bytes);
  if (fixed_name != nullptr) files.fixed_name = fixed_name;
  std::shared_ptr<const tfdist::TlsCredentials> credentials;
  const tfdist::Status status = tfdist::TlsCredentials::Create(files, &credentials);
  if (status.ok()) tfdist::SetTlsCredentials(std::move(credentials));
  return tfdist::Report(status, error, error_size);
}

void tfdist_tls_disable() { tfdist::SetTlsCredentials(nullptr); }

}  // extern "C"
