// What NIXL finds in the library by its name.
#include "plugins/nixl/abi.h"
#include "plugins/nixl/engine.h"

namespace tryst::nixl {
namespace {

abi::Engine* Create(const abi::EngineOptions* options) { return new TrystEngine(*options); }
void Destroy(abi::Engine* engine) { delete engine; }

}  // namespace
}  // namespace tryst::nixl

extern "C" {

tryst::nixl::abi::Plugin* nixl_plugin_init() {
  using tryst::nixl::TrystEngine;
  static tryst::nixl::abi::Plugin plugin = {
      tryst::nixl::abi::kVersion,
      &tryst::nixl::Create,
      &tryst::nixl::Destroy,
      [] { return "TRYST"; },
      [] { return "0.2.0, tried with NIXL 1.5.1"; },
      &TrystEngine::Options,
      [] { return tryst::nixl::abi::Memories{tryst::nixl::abi::kDram}; },
  };
  return &plugin;
}

void nixl_plugin_fini() {}

}  // extern "C"
