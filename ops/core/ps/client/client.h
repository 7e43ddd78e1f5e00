// A worker's client of the parameter servers: one connection to each, one thread for all, and four
// faces: parameters, tables, commits and averaging.
//
// When a connection breaks, its requests wait until Connect is called again for that server, or
// GiveUp. Connect creates parameters that the server lacks, from the last pulled values, and
// repeats the unanswered requests.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_CLIENT_H_
#define TFDIST_OPS_CORE_PS_CLIENT_CLIENT_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/net/authenticate.h"
#include "core/ps/client/client_thread.h"
#include "core/ps/client/faces/averaging.h"
#include "core/ps/client/faces/commits.h"
#include "core/ps/client/faces/parameters.h"
#include "core/ps/client/faces/shared.h"
#include "core/ps/client/faces/tables.h"

namespace tfdist::ps {

class Client {
 public:
  using Done = ps::Done;
  using Binding = BoundParameter;
  using Tensor = ps::Tensor;
  using Value = ps::Value;

  static Status Create(const ClientOptions& options, std::unique_ptr<Client>* out);
  ~Client();

  // Any thread may call these, and the faces. Connect, Flush, Leave and Close wait: they must not
  // be called from a `done`.

  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  Tables& tables() { return tables_; }
  Commits& commits() { return commits_; }
  Averaging& averaging() { return averaging_; }

  // Connects to a server, for the first time or again. `generation` goes into the HELLO.
  Status Connect(int server, const std::string& address, const Key& key, uint64_t generation,
                 double timeout_seconds);
  // Waits for a lost connection that was not reported yet. Its server; -1 after `seconds`.
  int WaitForLost(double seconds);
  // A sentence about the server that has not answered for the longest time over `seconds`; or
  // empty.
  std::string Waiting(double seconds);
  // By server; empty once closed.
  std::vector<ServerTraffic> Traffic();
  // The server will not come back: pending and later requests to it fail with `status`.
  void GiveUp(int server, const Status& status);
  // Takes back GiveUp: Connect may be called again.
  void Readmit(int server);
  // The server that has not answered for the longest time over `seconds`; -1 if there is none.
  int Silent(double seconds) { return thread_->Silent(seconds); }

  // Waits until every push has been answered. Fails if one failed that no pull has reported.
  Status Flush(double timeout_seconds);
  // Flushes, and tells the servers that this worker has finished its program.
  Status Leave(double timeout_seconds);

  ClientStats stats() const { return state_.counters.stats(); }
  void Close();

 private:
  explicit Client(const ClientOptions& options);

  ClientState state_;
  Commits commits_;
  Tables tables_;
  Parameters parameters_;
  Averaging averaging_;
  std::vector<std::mutex> connecting_;  // by server

  std::unique_ptr<ClientThread> thread_;  // the last member: destroyed before those it uses
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_CLIENT_H_
