// A parameter server as tests start it.
#ifndef TFDIST_TESTS_CORE_PS_SERVER_H_
#define TFDIST_TESTS_CORE_PS_SERVER_H_

#include <memory>

#include "core/ps/server/server.h"
#include "testing.h"

namespace tfdist::testing {

inline std::unique_ptr<ps::Server> StartServer(const ps::ServerOptions& options,
                                               const ps::ServerSnapshot& image = {}) {
  std::unique_ptr<ps::Server> server;
  REQUIRE_OK(ps::Server::Create(options, "", 0, true, &server));
  REQUIRE_OK(server->Restore(image));
  REQUIRE_OK(server->Start(TestKey()));
  return server;
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_PS_SERVER_H_
