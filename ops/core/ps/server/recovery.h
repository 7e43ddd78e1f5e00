// How a server survives a restart: it takes snapshots, and is restored from a snapshot and the redo
// log of the changes since.
#ifndef TFDIST_OPS_CORE_PS_SERVER_RECOVERY_H_
#define TFDIST_OPS_CORE_PS_SERVER_RECOVERY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/ps/server/server.h"
#include "core/ps/server/server_state.h"
#include "core/ps/server/step_handler.h"

namespace tfdist::ps {

class Recovery {
 public:
  Recovery(ServerState* state, const StepHandler* steps) : state_(*state), steps_(*steps) {}

  // As the functions of Server with these names.
  ServerSnapshot TakeSnapshot(bool changed_rows_only, const std::string& log_path);
  void Saved() { state_.log.Saved(); }
  void BeginLog(const std::string& path) { state_.log.Begin(path); }

  // Before the server starts.
  Status Restore(const ServerSnapshot& snapshot);
  Status ReplayLog(const std::string& path, uint64_t* records, uint64_t* left_out);

 private:
  // The first known time of restored rows sets the clock, which begins with the machine's time.
  void ResumeFrom(double time);
  uint64_t pushes() const;
  std::vector<uint64_t> SaveProgress() const;
  Status RestoreProgress(const std::vector<uint64_t>& progress);

  ServerState& state_;
  const StepHandler& steps_;
  bool knows_time_ = false;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_RECOVERY_H_
