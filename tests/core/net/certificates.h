// Certificates for tests, made by the program `openssl`.
#ifndef TFDIST_TESTS_CORE_NET_CERTIFICATES_H_
#define TFDIST_TESTS_CORE_NET_CERTIFICATES_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "core/net/tls/credentials.h"
#include "testing.h"

namespace tfdist::testing {

// A folder with an authority's certificate and key, and the last certificate that it has issued.
class Authority {
 public:
  explicit Authority(const std::string& name = "job authority") {
    folder_ = std::filesystem::temp_directory_path() / "tfdist_tls_XXXXXX";
    REQUIRE(mkdtemp(folder_.data()) != nullptr);
    Run(StrCat("openssl req -x509 ", kNewKey, " -days 30 -subj '/CN=", name,
               "' -keyout ca.key -out ca.pem"));
  }
  ~Authority() { std::filesystem::remove_all(folder_); }
  Authority(const Authority&) = delete;

  // Valid from `from` to `to` (YYYYMMDDHHMMSSZ), for `names` ("IP:127.0.0.1,DNS:worker").
  TlsFiles Issue(const std::string& names, const std::string& from = "20200101000000Z",
                 const std::string& to = "20991231000000Z", const std::string& extra = "") {
    std::ofstream(Path("ca.conf")) << "[ca]\ndefault_ca=a\n[a]\ndatabase=index\nrand_serial=yes\n"
                                      "new_certs_dir=.\ndefault_md=sha256\npolicy=p\n"
                                      "unique_subject=no\n[p]\ncommonName=supplied\n[e]\n"
                                      "subjectAltName="
                                   << names << "\n"
                                   << extra << "\n";
    std::ofstream(Path("index"), std::ios::app).flush();
    Run(StrCat("openssl req ", kNewKey, " -subj /CN=worker -keyout own.key -out own.csr"));
    Run(StrCat("openssl ca -batch -notext -config ca.conf -extensions e -cert ca.pem -keyfile ",
               "ca.key -in own.csr -out own.pem -startdate ", from, " -enddate ", to));
    return {Read("own.pem"), Read("own.key"), Read("ca.pem"), std::nullopt};
  }

  // Runs a command in the folder.
  void Run(const std::string& command) const {
    const std::string whole = StrCat("cd ", folder_, " && ", command, " >log 2>&1");
    const int code = std::system(whole.c_str());
    if (code != 0) FAIL("failed: ", StrCat(command, "\n", Read("log")));
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Read(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  static constexpr char kNewKey[] = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

  std::string folder_;
};

inline std::shared_ptr<const TlsCredentials> Credentials(const TlsFiles& files) {
  std::shared_ptr<const TlsCredentials> credentials;
  REQUIRE_OK(TlsCredentials::Create(files, &credentials));
  return credentials;
}

// All connections of the test that begin while it exists are encrypted.
struct Encrypted {
  explicit Encrypted(const TlsFiles& files) { SetTlsCredentials(Credentials(files)); }
  ~Encrypted() { SetTlsCredentials(nullptr); }
  Encrypted(const Encrypted&) = delete;
};

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_NET_CERTIFICATES_H_
