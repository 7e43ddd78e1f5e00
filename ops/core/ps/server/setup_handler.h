// Requests before the first step and after the last: a worker opens its connection, creates
// variables, binds optimizers to them, and leaves.
#ifndef TFDIST_OPS_CORE_PS_SERVER_SETUP_HANDLER_H_
#define TFDIST_OPS_CORE_PS_SERVER_SETUP_HANDLER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "core/ps/server/request.h"
#include "core/ps/server/server_state.h"
#include "core/ps/server/step_handler.h"

namespace tfdist::ps {

class SetupHandler {
 public:
  SetupHandler(ServerState* state, StepHandler* steps) : state_(*state), steps_(*steps) {}

  // No answer if the worker has opened a newer connection already.
  std::optional<Answer> HandleOpen(ClientContext* client, uint64_t id, const OpenRequest& open);
  Answer HandleCreate(const ClientContext& client, const CreateRequest& create,
                      const ClientRequest& request);
  Answer HandleBind(const ClientContext& client, uint64_t id, const BindRequest& bind);
  Answer HandleLeave(const ClientContext& client, uint64_t id);

  void EndConnection(const ClientContext& client, const std::string& why);
  // From now on the other workers do not wait for this one.
  void Drop(int worker);

 private:
  // Releases the values of the worker's last pull, which delay compensation keeps.
  void ForgetPulled(int worker);

  ServerState& state_;
  StepHandler& steps_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_SETUP_HANDLER_H_
