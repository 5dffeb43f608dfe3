"""The operators' API: AdminService, hosted once per replica by the supervisor."""
