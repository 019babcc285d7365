// libfabric keeps what it made for an endpoint that stays to the end (verbs/ofi/ofi_endpoint.cc),
// and copies of its own besides: under AddressSanitizer these tests look for all but leaks.
extern "C" const char* __lsan_default_options();
extern "C" const char* __lsan_default_options() { return "detect_leaks=0"; }
