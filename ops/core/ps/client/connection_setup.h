// The requests on a new connection to a server, before it is used for operations.
//
// The server may be new to the worker, or may have lost only the connection, or may have restarted
// and lost everything. The worker introduces itself, and restores the server's missing state.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_CONNECTION_SETUP_H_
#define TFDIST_OPS_CORE_PS_CLIENT_CONNECTION_SETUP_H_

#include <vector>

#include "core/base/status.h"
#include "core/ps/client/handshake.h"
#include "core/ps/client/operations/control_operations.h"
#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/parameter_table.h"
#include "core/ps/client/operations/table_directory.h"
#include "core/ps/protocol/message.h"

namespace tfdist::ps {

class ConnectionSetup {
 public:
  ConnectionSetup(int server, Handshake* handshake, ParameterTable* parameters,
                  TableDirectory* tables)
      : server_(server), handshake_(handshake), parameters_(parameters), tables_(tables) {}

  // Runs all steps, and updates `view`. `resolve`: of the worker's generation in an elastic job.
  Status Run(const OpenRequest& open, const std::vector<BoundOptimizer>& optimizers,
             const ResolveRequest& resolve, ServerView* view);

 private:
  Status Open(const OpenRequest& open, ServerView* view);
  // Finds the parameters that the server has, and creates the others from the last pulled values.
  Status RestoreParameters();
  Status RestoreOptimizers(const std::vector<BoundOptimizer>& optimizers);
  // A server that was started again knows no generation.
  Status RestoreGeneration(const ResolveRequest& resolve);
  // Creates missing tables, without rows: only servers have these.
  Status RestoreTables();

  const int server_;
  Handshake* const handshake_;
  ParameterTable* const parameters_;
  TableDirectory* const tables_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_CONNECTION_SETUP_H_
